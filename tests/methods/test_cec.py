"""CEC against its attention layer and its episodes written out in loops."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fscil.errors import ProtocolError
from fscil.methods import cec
from fscil.methods.cec import EPISODES, GraphAttention, episode, episodes_of, queries_of, rate_factor, rotated
from fscil.runtime import memory
from fscil.training.build import preprocess_of
from helpers import base_trained_method, part, small_config, trained_method, untrained_method


def naive_attention(layer, prototypes, query):
    """The graph of one query: every node attends to every node, itself included."""
    nodes = [*prototypes, query]
    updated = []
    for node in nodes:
        query = layer.query.weight @ node
        weights = [math.exp(float(query @ (layer.key.weight @ other)) / math.sqrt(len(node))) for other in nodes]
        message = sum(w / sum(weights) * (layer.value.weight @ other) for w, other in zip(weights, nodes, strict=True))
        summed = node + message
        centred = summed - summed.mean()
        normed = centred / torch.sqrt((centred**2).mean() + 1e-5)
        updated.append(normed * layer.norm.weight + layer.norm.bias)
    return updated[:-1], updated[-1]


@torch.no_grad()
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_attention_is_that_over_the_graph_of_each_query(classes):
    torch.manual_seed(0)
    layer = GraphAttention(6)
    layer.norm.weight.uniform_(0.5, 2)
    layer.norm.bias.normal_()
    prototypes, queries = 2 * torch.randn(classes, 6), 2 * torch.randn(4, 6)
    updated, updated_queries = layer(prototypes, queries)
    scores = layer.scores(prototypes, queries)
    for n, query in enumerate(queries):
        expected, expected_query = naive_attention(layer, prototypes, query)
        torch.testing.assert_close(updated[n], torch.stack(expected), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(updated_queries[n], expected_query, rtol=1e-4, atol=1e-5)
        for c, prototype in enumerate(expected):
            cosine = float(prototype @ expected_query / (prototype.norm() * expected_query.norm()))
            assert float(scores[n, c]) == pytest.approx(cosine, abs=1e-4)


def test_the_layer_has_no_more_weights_than_the_paper_gives_it():
    assert {name: tuple(value.shape) for name, value in GraphAttention(5).named_parameters()} == {
        "query.weight": (5, 5),
        "key.weight": (5, 5),
        "value.weight": (5, 5),
        "norm.weight": (5,),
        "norm.bias": (5,),
    }


def test_rotations_are_quarter_turns_of_each_image():
    images, turns = torch.rand(6, 3, 4, 4), torch.tensor([1, 2, 3, 3, 2, 1])
    for image, turn, found in zip(images, turns.tolist(), rotated(images, turns), strict=True):
        np.testing.assert_array_equal(found.numpy(), np.rot90(image.numpy(), turn, axes=(1, 2)))


# Episodes


def test_an_episode_has_one_prototype_and_other_images_of_each_class():
    labels = np.repeat(np.arange(40), 30)
    support, queries = episode(labels, np.random.default_rng(0))
    chosen = labels[support]
    assert len(set(chosen)) == len(support) == 15
    assert sorted(labels[queries]) == sorted(np.repeat(chosen, 15))
    assert len(set(support) | set(queries)) == 15 * 16


def test_an_episode_makes_do_with_what_there_is():
    labels = np.array([0, 0, 0, 1, 2, 2])
    support, queries = episode(labels, np.random.default_rng(0))
    assert sorted(labels[support]) == [0, 1, 2]
    assert sorted(labels[queries]) == [0, 0, 2]
    assert not set(support) & set(queries)


class Counted:
    """Only what counting needs: labels, no pixels."""

    def __init__(self, counts):
        self.counts = dict(enumerate(counts))

    def __len__(self):
        return sum(self.counts.values())


@pytest.mark.parametrize(
    ("counts", "epochs", "expected"),
    [
        ([500] * 60, 100, 5000),  # the paper's
        ([500] * 60, 200, 5000),
        ([500] * 60, 10, 500),
        ([30] * 100, 100, 5000),
        ([8] * 6, 4, 200),
        ([1] * 6, 4, 0),  # no image is left as a query
        ([8] * 6, 0, 0),
    ],
)
def test_5000_episodes_unless_the_recipe_has_fewer_epochs(monkeypatch, counts, epochs, expected):
    monkeypatch.setattr(cec, "EPISODES", EPISODES)  # as it is without the short sessions of these tests
    assert episodes_of(small_config(f"train.epochs={epochs}"), Counted(counts)) == expected


def test_a_setting_gives_another_number_of_episodes():
    assert episodes_of(small_config("train.epochs=10", "incremental.episodes=2000"), Counted([500] * 60)) == 2000
    assert episodes_of(small_config("incremental.episodes=2000"), Counted([1] * 6)) == 0


def config_of(*assignments):
    """Without augmentation: the views of a training image are the image."""
    plain = ("views.padding=0", "views.flip=0")
    return small_config(*plain, *assignments)


def test_the_loss_of_an_episode_counts_rotated_classes_as_new_ones():
    """Without augmentation the views are the images, so that all of it can be written out."""
    method, base = untrained_method("cec", config_of(), 3), part([4, 3, 4], 0)
    preprocess = preprocess_of(method.config)
    with torch.no_grad():
        found = float(method.episode_loss(base, np.random.default_rng(5), torch.Generator().manual_seed(0)))

        random = np.random.default_rng(5)
        support, queries = episode(base.labels, random)
        turns = random.integers(1, 4, 3)
        order = list(base.labels[support])

        def feature(position, turn):
            pixels, sizes = base.batch(np.array([position]))
            image = preprocess(torch.from_numpy(pixels), torch.from_numpy(sizes))
            turned = torch.from_numpy(np.rot90(image.numpy(), turn, axes=(2, 3)).copy())
            return method.network.backbone(turned)[0]

        prototypes = [feature(position, 0) for position in support]
        prototypes += [feature(position, turn) for position, turn in zip(support, turns, strict=True)]
        losses = []
        for new in (False, True):
            for position in queries:
                known = order.index(base.labels[position])
                query = feature(position, turns[known] if new else 0)
                updated, query = naive_attention(method.attention, prototypes, query)
                cosines = torch.stack([F.cosine_similarity(each, query, dim=0) for each in updated])
                losses.append(float(F.cross_entropy(16 * cosines, torch.tensor(known + 3 * new))))
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-3)


def test_from_the_second_epoch_on_images_are_those_of_the_test():
    """Whatever the augmentation of the recipe."""
    base, found = part([4, 3, 4], 0), {}
    for padding in (0, 0.5):
        method = untrained_method("cec", small_config(f"views.padding={padding}", f"views.flip={2 * padding}"), 3)
        with torch.no_grad():
            for generator in (None, torch.Generator().manual_seed(0)):
                loss = float(method.episode_loss(base, np.random.default_rng(5), generator))
                found[padding, generator is None] = loss
    assert found[0, True] == found[0.5, True] == pytest.approx(found[0, False])
    assert found[0.5, False] != pytest.approx(found[0, False])


def test_only_the_episodes_of_the_first_epoch_are_augmented(monkeypatch):
    monkeypatch.setattr(cec, "EPISODES", 2)
    base, augmented = part([4] * 4, 0), []
    method = base_trained_method("cec", small_config("train.epochs=3"), base)
    loss = method.episode_loss

    def recorded(images, random, generator):
        augmented.append(generator is not None)
        return loss(images, random, generator)

    method.episode_loss = recorded
    method.fit_base(base, (2,))
    assert augmented == [True, True, False, False, False, False]


@pytest.mark.parametrize(("data", "queries"), [("cifar100", 15), ("cub200", 10)])
def test_queries_are_those_of_the_data_set(data, queries):
    config = small_config(f"data.name={data}", "train.epochs=1")
    assert queries_of(config) == queries
    support, asked = episode(np.repeat(np.arange(20), 30), np.random.default_rng(0), queries_of(config))
    assert len(asked) == queries * len(support)


def test_episodes_move_encoder_and_attention_but_no_batch_norm_statistics():
    base = part([4] * 4, 0)
    method = base_trained_method("cec", config_of("train.epochs=2"), base)
    before = method.state()
    method.fit_base(base, (2,))
    after = method.state()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name in before if name.startswith("attention.")} <= changed
    assert any(name.startswith("backbone.") and name.endswith("weight") for name in changed)
    assert not [name for name in changed if "running" in name or "num_batches" in name]


def test_an_episode_in_parts_has_the_same_gradient(monkeypatch):
    method, base = untrained_method("cec", config_of(), 4), part([4] * 4, 0)
    gradients = []
    for most in (cec.MAX_PIXELS, 16 * 16 * 5):
        monkeypatch.setattr(cec, "MAX_PIXELS", most)
        method.network.backbone.zero_grad()
        method.episode_loss(base, np.random.default_rng(0), torch.Generator().manual_seed(0)).backward()
        gradients.append([each.grad.clone() for each in method.network.backbone.parameters()])
    for whole, in_parts in zip(*gradients, strict=True):
        torch.testing.assert_close(in_parts, whole, rtol=1e-3, atol=1e-5)


# Sessions


@pytest.fixture(scope="module")
def fitted():
    method = trained_method("cec", config_of("train.epochs=2"), part([4] * 4, 0), (2,))
    method.learn(part([0] * 4 + [2, 2], 100))
    return method


def test_prototypes_are_class_means_under_the_network_after_the_episodes(fitted):
    prototypes = fitted.network.head.weight.detach()
    for images, classes in ((part([4] * 4, 0), range(4)), (part([0] * 4 + [2, 2], 100), (4, 5))):
        features = fitted.network.features(images)
        for label in classes:
            mean = features[torch.from_numpy(images.labels == label)].mean(0)
            torch.testing.assert_close(prototypes[label], mean, rtol=1e-4, atol=1e-6)
    assert fitted.memory().images == 0
    assert fitted.memory().floats == prototypes.numel()


def test_a_query_alone_scores_as_it_does_among_others(fitted, monkeypatch):
    test = part([3] * 6, 10_000)
    together = fitted.scores(test)
    assert together.shape == (18, 6)
    for position in range(len(test)):
        alone = fitted.scores(test.select([position]))
        torch.testing.assert_close(alone[0], together[position], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(memory, "MAX_VALUES", 1)  # so little memory that queries are scored one by one
    torch.testing.assert_close(fitted.scores(test), together, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_an_image_is_scored_after_its_own_round_of_attention(fitted):
    test = part([1] * 6, 10_000)
    prototypes, features = fitted.network.head.weight, fitted.network.features(test)
    for scores, feature in zip(fitted.scores(test), features, strict=True):
        updated, query = naive_attention(fitted.attention, prototypes, feature)
        expected = F.cosine_similarity(torch.stack(updated), query[None])
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "rate"), [(16, 0.002), (33, 0.0002)])
def test_the_backbone_learns_slower_on_larger_images(size, rate):
    """The only episode is one step of Nesterov SGD, from momentum 0: w - rate (1 + 0.9) (gradient + 5e-4 w)."""
    base = part([3] * 2, 0)
    config = config_of("train.epochs=1", f"views.size={size}")
    assert episodes_of(config, base) == 1
    method, other = (base_trained_method("cec", config, base) for _ in range(2))
    random = np.random.default_rng([0, 0])
    other.network.backbone.zero_grad()
    other.episode_loss(base, random, torch.Generator().manual_seed(int(random.integers(2**62)))).backward()
    method.fit_base(base, (2,))
    for trained, untouched, its_rate in (
        (method.network.backbone, other.network.backbone, rate),
        (method.attention, other.attention, 0.0002),
    ):
        for moved, start in zip(trained.parameters(), untouched.parameters(), strict=True):
            expected = start.detach() - its_rate * 1.9 * (start.grad + 5e-4 * start.detach())
            torch.testing.assert_close(moved.detach(), expected, rtol=1e-5, atol=1e-8)


def test_rates_are_halved_every_20_of_100_epochs():
    for epoch in range(100):
        for number in (50 * epoch, 50 * epoch + 49):
            assert rate_factor(number, 5000) == 0.5 ** (epoch // 20)


def test_a_state_with_the_former_names_of_query_and_key_is_loaded(fitted):
    names = {"attention.query.weight": "attention.ask.weight", "attention.key.weight": "attention.answer.weight"}
    former = {names.get(name, name): value for name, value in fitted.state().items()}
    assert set(names.values()) < set(former)
    loaded = untrained_method("cec", fitted.config, 4)
    loaded.load_state(former)
    test = part([3] * 6, 10_000)
    assert all(torch.equal(value, fitted.state()[name]) for name, value in loaded.state().items())
    torch.testing.assert_close(loaded.scores(test), fitted.scores(test), rtol=1e-4, atol=1e-5)


def test_classes_must_arrive_in_order(fitted):
    with pytest.raises(ProtocolError, match="numbered from 6"):
        fitted.learn(part([0] * 7 + [2], 100))
