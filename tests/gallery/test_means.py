import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import KNeighborsClassifier

from fscil.gallery import balanced_indices, balanced_means, class_means, cosine_scores


def nearest_by_brute_force(features, k):
    """All cosines to the mean, sorted; equal rows are compared by their index."""
    wide = features.double().numpy()
    rows, inverse = np.unique(wide, axis=0, return_inverse=True)
    cosine = cosine_similarity(rows, wide.mean(0, keepdims=True))[:, 0][inverse.reshape(-1)]
    return sorted(range(len(wide)), key=lambda row: (-round(cosine[row], 12), row))[:k]


@st.composite
def classes_of_features(draw):
    """Small whole numbers, so that equal rows and equal angles are common."""
    count, width = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    row = st.lists(st.integers(-3, 3), min_size=width, max_size=width)
    return torch.tensor(draw(st.lists(row, min_size=count, max_size=count)), dtype=torch.float32)


@given(st.data(), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**31))
def test_nearest_k_by_brute_force(data, count, width, seed):
    features = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    k = data.draw(st.integers(1, count))
    if width == 1:  # on a line all cosines are 1 or -1: ties, by index
        mean = features.double().mean()
        expected = sorted(range(count), key=lambda row: (bool(features[row, 0] * mean < 0), row))[:k]
    else:
        expected = nearest_by_brute_force(features, k)
    assert balanced_indices(features, k).tolist() == expected


@given(st.data(), classes_of_features())
def test_equal_rows_are_chosen_by_index(data, features):
    repeated = features[data.draw(st.permutations([*range(len(features))] * 2))]
    chosen = balanced_indices(repeated, len(repeated)).tolist()
    assert sorted(chosen) == list(range(len(repeated)))
    for row in features.unique(dim=0):
        copies = [place for place in chosen if torch.equal(repeated[place], row)]
        assert copies == sorted(copies)
    wide = repeated.double().numpy()
    cosine = cosine_similarity(wide, wide.mean(0, keepdims=True))[:, 0]
    assert (np.diff(cosine[chosen]) <= 1e-12).all()


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("width", [3, 64, 512, 515])
def test_ties_hold_whatever_the_position_and_memory_layout(layout, width):
    """A vectorised sum may treat the last few entries differently; copies must still be exactly as near."""
    one = torch.randn(1, width, generator=torch.Generator().manual_seed(width))
    features = one.expand(101, width).clone()
    if layout == "columns":
        features = features.T.contiguous().T
    assert balanced_indices(features, 101).tolist() == list(range(101))


@given(classes_of_features(), st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**30]))
def test_scale_does_not_matter(features, factor):
    assert torch.equal(balanced_indices(features * factor, len(features)), balanced_indices(features, len(features)))


def test_the_mean_is_of_raw_features():
    """One long feature pulls the raw mean to its side; a mean of normalised ones would not move."""
    features = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [100.0, 0.0]])
    assert balanced_indices(features, 1).tolist() == [3]


def test_all_zero_features_are_ties():
    assert balanced_indices(torch.zeros(4, 3), 2).tolist() == [0, 1]


@pytest.mark.parametrize("k", [0, -1, 4])
def test_impossible_k(k):
    with pytest.raises(ValueError, match="of 3 images"):
        balanced_indices(torch.rand(3, 2), k)


@st.composite
def labelled(draw):
    classes, width = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    labels = draw(st.permutations([*range(classes), *draw(st.lists(st.integers(0, classes - 1), max_size=20))]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(len(labels), width, generator=random), torch.tensor(labels), classes


@given(labelled())
def test_class_means_one_by_one(case):
    features, labels, classes = case
    means = class_means(features, labels, classes)
    assert means.shape == (classes, features.shape[1])
    assert means.dtype == features.dtype
    for label in range(classes):
        expected = np.mean([row.double().numpy() for row in features[labels == label]], axis=0)
        np.testing.assert_allclose(means[label].numpy(), expected, rtol=1e-6, atol=1e-7)


@given(labelled(), st.randoms(use_true_random=False))
def test_class_means_do_not_depend_on_the_order(case, random):
    features, labels, classes = case
    order = list(range(len(labels)))
    random.shuffle(order)
    torch.testing.assert_close(
        class_means(features[order], labels[order], classes), class_means(features, labels, classes)
    )


def test_a_class_without_images_has_no_mean():
    means = class_means(torch.ones(2, 3), torch.tensor([0, 2]), 4)
    assert means.isnan().all(1).tolist() == [False, True, False, True]


@given(labelled(), st.integers(1, 8))
def test_balanced_means_one_by_one(case, k):
    features, labels, classes = case
    means = balanced_means(features, labels, classes, k)
    for label in range(classes):
        own = features[labels == label]
        near = balanced_indices(own, min(k, len(own)))
        expected = own[near].double().mean(0).float()
        torch.testing.assert_close(means[label], expected, rtol=1e-6, atol=1e-7)


@given(labelled())
def test_balanced_means_of_everything_are_the_class_means(case):
    features, labels, classes = case
    torch.testing.assert_close(
        balanced_means(features, labels, classes, len(labels)), class_means(features, labels, classes)
    )


@given(labelled(), st.integers(1, 9))
def test_scores_are_cosines(case, count):
    prototypes, _, _ = case
    features = torch.randn(count, prototypes.shape[1], generator=torch.Generator().manual_seed(count))
    expected = cosine_similarity(features.double().numpy(), prototypes.double().numpy())
    np.testing.assert_allclose(cosine_scores(features, prototypes).numpy(), expected, atol=1e-6)


def test_nearest_mean_of_directions_as_scikit_learn_finds_it():
    """Among unit vectors the largest cosine is the smallest Euclidean distance."""
    random = np.random.default_rng(5)
    prototypes, queries = random.normal(size=(20, 8)), random.normal(size=(300, 8))
    unit = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
    oracle = KNeighborsClassifier(1).fit(unit, np.arange(20))
    expected = oracle.predict(queries / np.linalg.norm(queries, axis=1, keepdims=True))
    found = cosine_scores(torch.from_numpy(queries), torch.from_numpy(prototypes)).argmax(1)
    assert np.array_equal(found.numpy(), expected)
