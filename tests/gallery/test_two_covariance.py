"""The two-covariance model against densities written out class by class, and what must hold whatever the data."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_t
from torch import Tensor
from torch.distributions import MultivariateNormal

from fscil.gallery.two_covariance import Moments, TwoCovariance, prepare, probabilities

DIM = 6


def draw(seed: int, classes: int = 30, photos: int = 12, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Features of classes whose means differ more in some directions than in others."""
    random = torch.Generator().manual_seed(seed)
    spread = torch.linspace(2, 0.2, dim)
    means = torch.randn(classes, dim, generator=random) * spread + 1
    labels = torch.arange(classes).repeat_interleave(photos)
    return means[labels] + torch.randn(len(labels), dim, generator=random) * spread.flip(0), labels


def diagonal_model(psi: Tensor, correlation: float = 0.0, degrees: float | None = None) -> TwoCovariance:
    """A model in whose mapped space everything can be said directly."""
    centre, projection = torch.zeros(len(psi)), torch.eye(len(psi))
    return TwoCovariance(centre, projection, psi.double(), False, correlation, degrees=degrees)


def class_means(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    names = labels.unique()
    return torch.stack([mapped[labels == name].mean(0) for name in names]), torch.bincount(labels)


def written_out(query: Tensor, photos: Tensor, psi: Tensor) -> float:
    """log p(query, photos) - log p(query) - log p(photos), each a joint Gaussian over all coordinates at once."""

    def joint(vectors: Tensor) -> Tensor:
        count, dim = vectors.shape
        blocks = torch.kron(torch.ones(count, count, dtype=torch.float64), torch.diag(psi))
        covariance = blocks + torch.eye(count * dim, dtype=torch.float64)
        density = MultivariateNormal(torch.zeros(count * dim, dtype=torch.float64), covariance)
        return density.log_prob(vectors.flatten())

    return float(joint(torch.cat([query[None], photos])) - joint(query[None]) - joint(photos))


def test_log_ratio_is_that_of_the_densities_written_out() -> None:
    random = torch.Generator().manual_seed(0)
    psi = torch.tensor([5.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    photos = [torch.randn(count, 4, generator=random, dtype=torch.float64) for count in (1, 2, 5, 2, 30)]
    queries = torch.randn(7, 4, generator=random, dtype=torch.float64)
    means = torch.stack([own.mean(0) for own in photos])
    found = diagonal_model(psi).log_ratio(queries.float(), means, torch.tensor([len(own) for own in photos]))
    expected = torch.tensor([[written_out(query, own, psi) for own in photos] for query in queries])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("degrees", [1.0, 4.5, 300.0])
def test_log_ratio_by_student_is_that_of_the_densities_of_scipy(degrees: float) -> None:
    random = torch.Generator().manual_seed(0)
    psi = torch.tensor([5.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    counts, means = torch.tensor([1, 2, 5, 2, 30]), torch.randn(5, 4, generator=random, dtype=torch.float64)
    queries = torch.randn(7, 4, generator=random, dtype=torch.float64) * torch.tensor([1, 1, 1, 1, 3, 10, 100])[:, None]
    found = diagonal_model(psi, degrees=degrees).log_ratio(queries.float(), means, counts)
    stranger = multivariate_t(torch.zeros(4).numpy(), torch.diag(1 + psi).numpy(), df=degrees)
    for place, (mean, count) in enumerate(zip(means, counts, strict=True)):
        centre, variance = count * psi / (count * psi + 1) * mean, 1 + psi / (count * psi + 1)
        own = multivariate_t(centre.numpy(), torch.diag(variance).numpy(), df=degrees)
        expected = own.logpdf(queries.numpy()) - stranger.logpdf(queries.numpy())
        torch.testing.assert_close(found[:, place].double(), torch.from_numpy(expected), atol=1e-4, rtol=1e-4)


def test_information_is_the_mean_ratio_of_images_of_their_class() -> None:
    random = torch.Generator().manual_seed(1)
    psi = torch.tensor([3.0, 0.5, 0.0], dtype=torch.float64)
    model, images, count = diagonal_model(psi), 20_000, 5
    centres = torch.randn(images, 3, generator=random, dtype=torch.float64) * psi.sqrt()
    photos = centres[:, None] + torch.randn(images, count, 3, generator=random, dtype=torch.float64)
    queries = centres + torch.randn(images, 3, generator=random, dtype=torch.float64)
    made = model.classes(photos.mean(1), torch.full((images,), count))
    own = (queries * made.weights).sum(1) + made.offsets - queries.square() @ made.precision[0].double()
    assert float(own.mean()) == pytest.approx(
        float(model.information(torch.tensor([count]))), abs=4 * float(own.std()) / images**0.5
    )


def test_the_map_makes_within_identity_and_between_diagonal() -> None:
    features, labels = draw(0)
    within_share, between_share, scale = 0.3, 0.4, 1.7
    model = TwoCovariance.fit(features, labels, within_share, between_share, within_scale=scale)
    moments = Moments.of(prepare(features), labels)
    within = moments.basis @ torch.diag(moments.shrunk_within(within_share)) @ moments.basis.T
    half = moments.basis @ torch.diag(moments.shrunk_within(within_share).sqrt())
    factor = half @ moments.between_factor(moments.shrunk_within(within_share))
    between = (1 - between_share) * factor @ factor.T + between_share * moments.between_variance * torch.eye(DIM)
    projection = model.projection.double()
    torch.testing.assert_close(projection.T @ within @ projection * scale, torch.eye(DIM).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(projection.T @ between @ projection, torch.diag(model.psi), atol=1e-4, rtol=1e-5)
    assert (model.psi.diff() <= 0).all()


def test_covariances_are_recovered_without_bias_from_classes_of_unequal_size() -> None:
    random = torch.Generator().manual_seed(1)
    within = torch.diag(torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64))
    between = torch.tensor([[1.0, 0.4, 0.0], [0.4, 0.5, 0.0], [0.0, 0.0, 0.1]], dtype=torch.float64)
    counts = torch.randint(2, 6, (4000,), generator=random)
    labels = torch.arange(4000).repeat_interleave(counts)
    means = torch.randn(4000, 3, generator=random, dtype=torch.float64) @ torch.linalg.cholesky(between).T
    noise = torch.randn(len(labels), 3, generator=random, dtype=torch.float64) @ within.sqrt()
    moments = Moments.of(means[labels] + noise, labels)
    estimate = moments.basis @ torch.diag(moments.within) @ moments.basis.T
    torch.testing.assert_close(estimate, within, atol=0.15, rtol=0)
    eigenvalues = moments.shrunk_within(0.0)
    factor = moments.basis @ torch.diag(eigenvalues.sqrt()) @ moments.between_factor(eigenvalues)
    torch.testing.assert_close(factor @ factor.T, between, atol=0.15, rtol=0)
    assert moments.between_variance == pytest.approx(float(between.trace()) / 3, rel=0.1)


def test_classes_that_do_not_differ_leave_no_negative_variance() -> None:
    random = torch.Generator().manual_seed(2)
    labels = torch.arange(8).repeat_interleave(3)
    model = TwoCovariance.fit(torch.randn(24, 40, generator=random), labels, 0.5, 0.5)
    assert (model.psi >= 0).all()
    assert torch.isfinite(model.transform(torch.randn(3, 40, generator=random))).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_and_fewer_photos_than_dimensions(classes: int) -> None:
    features, labels = draw(3, classes, 4, 50)
    model = TwoCovariance.fit(features, labels, 0.7, 0.9)
    mapped = model.transform(features)
    ratios = model.log_ratio(mapped, *class_means(mapped, labels))
    assert torch.isfinite(ratios).all()
    assert (ratios.argmax(1) == labels).double().mean() > 0.8


@pytest.mark.parametrize(("photos", "classes"), [(1, 5), (4, 1)])
def test_what_cannot_be_estimated_is_refused(photos: int, classes: int) -> None:
    with pytest.raises(ValueError, match="two classes and a class with two photos"):
        TwoCovariance.fit(*draw(0, classes, photos))


def test_rescaled_images_have_the_expected_length() -> None:
    features, labels = draw(4)
    model = TwoCovariance.fit(features, labels, rescale=True)
    mapped = model.transform(features)
    torch.testing.assert_close((mapped.square() / (1 + model.psi.float())).mean(1), torch.ones(len(features)))


def test_fewer_directions_are_the_first_ones() -> None:
    features, labels = draw(5)
    whole = TwoCovariance.fit(features, labels, rescale=False)
    part = TwoCovariance.fit(features, labels, rescale=False, dim=3)
    torch.testing.assert_close(part.transform(features), whole.transform(features)[:, :3])
    torch.testing.assert_close(part.psi, whole.psi[:3])


numbers = st.integers(0, 2**31 - 1)


@given(seed=numbers)
@settings(max_examples=25, deadline=None)
def test_the_order_of_photos_is_of_no_account(seed: int) -> None:
    features, labels = draw(seed, 6, 5)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    one, other = TwoCovariance.fit(features, labels), TwoCovariance.fit(features[order], labels[order])
    torch.testing.assert_close(one.psi, other.psi, rtol=1e-6, atol=1e-9)
    scores = []
    for model, rows in ((one, torch.arange(len(labels))), (other, order)):
        mapped = model.transform(features[rows])
        scores.append(model.log_ratio(model.transform(features), *class_means(mapped, labels[rows])))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-3, atol=1e-3)


@given(seed=numbers, psi=st.floats(0.01, 100))
@settings(max_examples=25, deadline=None)
def test_many_photos_make_it_a_linear_discriminant(seed: int, psi: float) -> None:
    """The posterior is then the mean itself and the ratio, up to a term of the query, half the squared distance."""
    random = torch.Generator().manual_seed(seed)
    means, queries = torch.randn(5, DIM, generator=random), torch.randn(9, DIM, generator=random)
    ratios = diagonal_model(torch.full((DIM,), psi)).log_ratio(queries, means, torch.full((5,), 10**9))
    distances = -torch.cdist(queries.double(), means.double()).square() / 2
    found = ratios.double() - ratios.double().mean(1, keepdim=True)
    torch.testing.assert_close(found, distances - distances.mean(1, keepdim=True), atol=1e-4, rtol=1e-4)


@given(seed=numbers, count=st.integers(1, 1000))
@settings(max_examples=25, deadline=None)
def test_classes_that_cannot_differ_give_no_evidence(seed: int, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    means, queries = torch.randn(4, DIM, generator=random), torch.randn(3, DIM, generator=random)
    ratios = diagonal_model(torch.full((DIM,), 1e-12)).log_ratio(queries, means, torch.full((4,), count))
    torch.testing.assert_close(ratios, torch.zeros(3, 4), atol=1e-5, rtol=0)


@given(seed=numbers)
@settings(max_examples=25, deadline=None)
def test_with_many_degrees_of_freedom_it_is_the_gaussian(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    means, queries = torch.randn(6, DIM, generator=random), torch.randn(3, DIM, generator=random)
    psi, counts = torch.rand(DIM, generator=random) * 3, torch.randint(1, 9, (6,), generator=random)
    student = diagonal_model(psi, degrees=1e6).log_ratio(queries, means, counts)
    torch.testing.assert_close(student, diagonal_model(psi).log_ratio(queries, means, counts), atol=2e-3, rtol=1e-3)


@given(seed=numbers, degrees=st.floats(1, 1000), count=st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_tails_do_not_change_which_of_equally_many_photos_is_nearest(seed: int, degrees: float, count: int) -> None:
    random = torch.Generator().manual_seed(seed)
    means, queries = torch.randn(6, DIM, generator=random), 3 * torch.randn(20, DIM, generator=random)
    psi, counts = torch.rand(DIM, generator=random) * 3, torch.full((6,), count)
    gaussian = diagonal_model(psi).log_ratio(queries, means, counts).sort(1)
    student = diagonal_model(psi, degrees=degrees).log_ratio(queries, means, counts)
    assert (student.gather(1, gaussian.indices).diff() >= -1e-4).all()


@given(seed=numbers, length=st.floats(1e-6, 1e6), degrees=st.floats(1, 1e9))
@settings(max_examples=50, deadline=None)
def test_tails_leave_every_ratio_finite(seed: int, length: float, degrees: float) -> None:
    """An image may be its own class's mean, at any distance from the others."""
    random = torch.Generator().manual_seed(seed)
    means = length * torch.randn(6, DIM, generator=random)
    model = diagonal_model(torch.rand(DIM, generator=random) * 1e4, degrees=degrees)
    assert torch.isfinite(model.log_ratio(means, means, torch.full((6,), 10**6))).all()


@given(seed=numbers)
@settings(max_examples=25, deadline=None)
def test_photo_by_photo_or_by_sum_and_count_is_the_same(seed: int) -> None:
    """The posterior after each photo is the prior of the next."""
    random = torch.Generator().manual_seed(seed)
    psi = torch.rand(DIM, generator=random, dtype=torch.float64) * 10
    photos = torch.randn(7, DIM, generator=random, dtype=torch.float64)
    mean, variance = torch.zeros(DIM, dtype=torch.float64), psi
    for photo in photos:
        gain = variance / (variance + 1)
        mean, variance = mean + gain * (photo - mean), variance * (1 - gain)
    found = diagonal_model(psi).posterior(photos.mean(0)[None], torch.tensor([len(photos)]))
    torch.testing.assert_close(found[0][0], mean)
    torch.testing.assert_close(found[1][0], variance)


@given(seed=numbers)
@settings(max_examples=25, deadline=None)
def test_counts_may_be_mixed(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    means, queries = torch.randn(6, DIM, generator=random), torch.randn(3, DIM, generator=random)
    counts = torch.randint(1, 4, (6,), generator=random)
    model = diagonal_model(torch.rand(DIM, generator=random), correlation=0.1)
    alone = [model.log_ratio(queries, means[at : at + 1], counts[at : at + 1]) for at in range(6)]
    torch.testing.assert_close(model.log_ratio(queries, means, counts), torch.cat(alone, 1))


@given(
    seed=numbers, rescale=st.booleans(), correlation=st.floats(0, 1), degrees=st.one_of(st.none(), st.floats(1, 100))
)
@settings(max_examples=10, deadline=None)
def test_state_round_trip(seed: int, rescale: bool, correlation: float, degrees: float | None) -> None:
    features, labels = draw(seed, 5, 4)
    model = TwoCovariance.fit(features, labels, rescale=rescale, correlation=correlation, degrees=degrees)
    again = TwoCovariance.from_state(model.state())
    mapped = model.transform(features)
    assert torch.equal(again.transform(features), mapped)
    means, counts = class_means(mapped, labels)
    assert torch.equal(again.log_ratio(mapped, means, counts), model.log_ratio(mapped, means, counts))


def test_correlated_photos_count_for_less() -> None:
    psi, means = torch.ones(DIM), torch.ones(1, DIM)
    sure = diagonal_model(psi).posterior(means, torch.tensor([50]))[1]
    unsure = diagonal_model(psi, correlation=1.0).posterior(means, torch.tensor([50]))[1]
    torch.testing.assert_close(unsure, diagonal_model(psi).posterior(means, torch.tensor([1]))[1])
    assert (unsure > sure).all()


# Probabilities


def test_probabilities_are_bayes_rule() -> None:
    ratios = torch.tensor([[1.0, -2.0]])
    known, unknown = probabilities(ratios, 0.2, temperature=2.0)
    odds = torch.tensor([0.4 * 2.718281828**0.5, 0.4 * 2.718281828**-1, 0.2])
    torch.testing.assert_close(torch.cat([known[0], unknown]), odds / odds.sum())


def test_no_unknowns_where_none_are_expected() -> None:
    known, unknown = probabilities(torch.randn(5, 3), 0.0)
    assert torch.equal(unknown, torch.zeros(5))
    torch.testing.assert_close(known.sum(1), torch.ones(5))


@pytest.mark.parametrize(("prior", "temperature"), [(1.0, 1.0), (-0.1, 1.0), (0.5, 0.0)])
def test_impossible_priors_and_temperatures(prior: float, temperature: float) -> None:
    with pytest.raises(ValueError, match="unknown prior"):
        probabilities(torch.zeros(1, 1), prior, temperature)


def test_probabilities_are_calibrated_on_data_of_the_model() -> None:
    """Of the images said to be of a class, or unknown, with probability p, a share p is."""
    random = torch.Generator().manual_seed(6)
    psi = torch.tensor([3.0, 1.0, 0.5, 0.2])
    counts, said, true = torch.tensor([1, 1, 2, 5, 20]), [], []
    for _ in range(400):
        centres = torch.randn(5, 4, generator=random) * psi.sqrt()
        means = centres + torch.randn(5, 4, generator=random) / counts.sqrt()[:, None]
        target = torch.where(torch.rand(50, generator=random) < 0.3, 5, torch.randint(5, (50,), generator=random))
        strangers = torch.randn(50, 4, generator=random) * psi.sqrt()
        origin = torch.where((target == 5)[:, None], strangers, centres[target.clamp_max(4)])
        queries = origin + torch.randn(50, 4, generator=random)
        known, unknown = probabilities(diagonal_model(psi).log_ratio(queries, means, counts), 0.3)
        said.append(torch.cat([known, unknown[:, None]], 1))
        true.append(torch.nn.functional.one_hot(target, 6))
    stated, happened = torch.cat(said).flatten(), torch.cat(true).flatten().float()
    for low in torch.arange(0, 1, 0.1).tolist():
        inside = (stated >= low) & (stated < low + 0.1)
        assert float(happened[inside].mean()) == pytest.approx(float(stated[inside].mean()), abs=0.03)
