"""Base training: the loss of a step against the paper in loops, no waiting for the device, training and loading."""

import copy
import math
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from small_training import BASE, CLASSES, config, same
from torch import nn
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import return_and_correct_aliasing

from fscil.errors import StoreError
from fscil.features import FeatureCache
from fscil.methods import METHODS
from fscil.models import Backbone, CosineHead
from fscil.training.base_training import (
    base_step,
    estimate_base_training,
    load_base_network,
    new_base_network,
    plain_recipe,
    recipe_step,
    train_base_network,
    validation_split,
)
from fscil.training.build import preprocess_of, views_of
from fscil.training.loop import Batch
from helpers import CONTEXT, SIZE, part, small_config

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


# The loss of ALICE's recipe


def batch_of(images, seed, progress=0.0):
    pixels, sizes = images.batch(np.arange(len(images)))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.from_numpy(images.labels)
    return Batch(torch.from_numpy(pixels), torch.from_numpy(sizes), labels, generator, progress)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def literal_loss(network, batch, config, classes):
    """One sample after the other, one class after the other; the network alone sees a view as a whole."""
    generator, size = batch.generator, len(batch.labels)
    plain = replace(views_of(config), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    views = plain(batch.pixels, batch.sizes, generator)
    pairs = [(a, b) for a in range(classes) for b in range(a + 1, classes)]
    order = torch.rand(config.mixing.repeats, size, generator=generator).argsort(1) if config.mixing.repeats else []
    couples = [(i, int(j)) for row in order for i, j in enumerate(row) if batch.labels[i] != batch.labels[j]]
    weights = torch.empty(len(couples)).uniform_(0.4, 0.6, generator=generator) if couples else []

    total = 0.0
    for view in views:
        images = torch.stack([(view[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)
        labels = batch.labels.tolist()
        inputs = list(images)
        for (i, j), lam in zip(couples, weights, strict=True):
            inputs.append(lam * images[i] + (1 - lam) * images[j])
            labels.append(classes + pairs.index(tuple(sorted((labels[i], labels[j])))))
        with torch.no_grad():
            features = network.projection(network.backbone(torch.stack(inputs))).double().tolist()
        classifier = network.head.weight.detach().double().tolist()
        scale, margin = config.loss.scale, config.loss.margin if config.loss.kind == "cosface" else 0.0
        losses = []
        for feature, label in zip(features, labels, strict=True):
            own = math.exp(scale * (cosine(feature, classifier[label]) - margin))
            others = 0.0
            for other, weight in enumerate(classifier):
                if other != label:
                    others += math.exp(scale * cosine(feature, weight))
            losses.append(-math.log(own / (own + others)))
        total += sum(losses) / len(losses)
    return total / len(views), len(inputs)


@pytest.mark.parametrize(
    ("assignments", "outputs"),
    [
        (["mixing.repeats=2"], 15),
        (["mixing.repeats=0"], 5),
        (["mixing.repeats=1", "model.projection=0"], 15),
        (["mixing.repeats=0", "views.count=1", "loss.kind=softmax", "model.projection=0"], 5),
    ],
)
def test_the_loss_of_a_step_is_the_papers(assignments, outputs):
    recipe, images = small_config(*assignments), part([4, 3, 2, 2, 1], 0)
    network = new_base_network(recipe, 5, CONTEXT).train()
    assert len(network.head.weight) == outputs
    found = sum(base_step(recipe, network, 5)(batch_of(images, 7)))
    expected, inputs = literal_loss(copy.deepcopy(network), batch_of(images, 7), recipe, 5)
    assert found.item() == pytest.approx(expected, rel=1e-4)
    assert inputs > len(images) or not recipe.mixing.repeats


def loss_of(recipe, progress):
    network = new_base_network(recipe, 5, CONTEXT).train()
    return sum(base_step(recipe, network, 5)(batch_of(part([4, 3, 2, 2, 1], 0), 7, progress))).item()


@pytest.mark.parametrize(("progress", "margin"), [(0.0, 0.0), (0.2, 0.2), (0.4, 0.4), (0.9, 0.4)])
def test_the_margin_grows_in_the_warm_up(progress, margin):
    growing = small_config("mixing.repeats=0", "loss.margin_warmup=0.4")
    fixed = small_config("mixing.repeats=0", f"loss.margin={margin}")
    assert loss_of(growing, progress) == pytest.approx(loss_of(fixed, progress), rel=1e-6)


def inputs_of_a_step(recipe, images, progress=0.0):
    """The shapes of what passes the backbone, one for each loss."""
    network, seen = new_base_network(recipe, len(images.counts), CONTEXT).train(), []
    network.backbone.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape))
    losses = list(base_step(recipe, network, len(images.counts))(batch_of(images, 7, progress)))
    assert len(losses) == len(seen)
    return seen


@pytest.mark.parametrize(("progress", "mixed"), [(0.0, False), (0.49, False), (0.5, True), (1.0, True)])
def test_class_augmentation_begins_when_the_recipe_says(progress, mixed):
    images = part([4, 3, 2, 2, 1], 0)
    first, *_ = inputs_of_a_step(small_config("mixing.repeats=2", "mixing.start=0.5"), images, progress)
    assert (first[0] > len(images)) == mixed


def test_each_view_passes_on_its_own():
    """So that BatchNorm's statistics are those of one view."""
    first, second = inputs_of_a_step(small_config("mixing.repeats=2"), part([4, 4, 4], 0))
    assert first == second
    assert 12 < first[0] <= 12 + 2 * 12
    assert first[1:] == (3, SIZE, SIZE)


def test_the_network_depends_on_the_seed_alone():
    def state(*assignments):
        return new_base_network(small_config(*assignments), 4, CONTEXT).state_dict()

    torch.manual_seed(5)
    first = state()
    torch.rand(3)
    second, other = state(), state("train.seed=1")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["backbone.conv1.weight"], other["backbone.conv1.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


# No waiting for the device

aten = torch.ops.aten
# What a host can only know by waiting: a number (.item(), bool(), float()), or a shape that depends on values.
WAITS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
}


class OnDevice(torch.Tensor):
    """A tensor as if on another device: operations on it give another such tensor, reading its values is an error."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func is aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1])
        if func in WAITS or by_mask:
            raise AssertionError(f"{func} waits for the device")
        here = tree.tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs))
        result = tree.tree_map_only(torch.Tensor, cls, func(*here[0], **here[1]))
        return return_and_correct_aliasing(func, args, kwargs, result)


def on_device(network):
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(OnDevice(parameter.data))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = OnDevice(buffer)
    return network


def test_reading_a_value_from_the_device_is_noticed():
    far = OnDevice(torch.arange(3.0))
    for look in (lambda: far.sum().item(), lambda: bool((far > 1).any()), lambda: far[far > 1], lambda: far.nonzero()):
        with pytest.raises(AssertionError, match="waits for the device"):
            look()


@pytest.mark.parametrize("name", ["closer", "fact", "savc"])
def test_an_objective_does_not_wait_for_the_device(name):
    recipe = METHODS[name].base_recipe(small_config())
    network = on_device(new_base_network(recipe, 6, CONTEXT)).train()
    pixels = torch.randint(0, 256, (12, SIZE, SIZE, 3), dtype=torch.uint8)
    batch = Batch(OnDevice(pixels), torch.full((12, 2), SIZE), torch.arange(12) % 6, torch.Generator(), 0.5)
    losses = list(recipe_step(recipe, network, 6)(batch))
    assert all(isinstance(loss, OnDevice) and loss.inner.isfinite() for loss in losses)


@pytest.mark.parametrize("mixing", ["mixing.repeats=0", "mixing.repeats=2", "mixing.pairs=4"])
def test_a_step_does_not_wait_for_the_device(mixing):
    config = small_config("views.count=2", mixing)
    network = on_device(new_base_network(config, 6, CONTEXT)).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, nesterov=True)
    pixels = torch.randint(0, 256, (12, SIZE, SIZE, 3), dtype=torch.uint8)
    sizes, labels = torch.full((12, 2), SIZE), torch.arange(12) % 6
    before = network.head.weight.inner.clone()
    losses = []
    for loss in base_step(config, network, 6)(Batch(OnDevice(pixels), sizes, labels, torch.Generator(), 0.5)):
        loss.backward()
        losses.append(loss)
    optimizer.step()
    assert len(losses) == 2
    assert all(isinstance(loss, OnDevice) and loss.inner.isfinite() for loss in losses)
    assert not torch.equal(network.head.weight.inner, before)


def test_a_compiled_step_has_the_same_loss_and_gradients():
    found = []
    for compiled in ("off", "aot_eager"):
        config = small_config("views.count=1", "mixing.repeats=0", f"train.compile={compiled}")
        torch.manual_seed(0)
        backbone = Backbone(
            4, conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten()
        )
        network = new_base_network(config, 6, CONTEXT, backbone).train()
        random = torch.Generator().manual_seed(1)
        pixels = torch.randint(0, 256, (12, SIZE, SIZE, 3), dtype=torch.uint8, generator=random)
        batch = Batch(pixels, torch.full((12, 2), SIZE), torch.arange(12) % 6, random, 0.5)
        (loss,) = base_step(config, network, 6)(batch)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in network.parameters())])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(plain, compiled, rtol=1e-4, atol=1e-5)


# Training and loading


@pytest.mark.parametrize("head", ["cosine", "linear"])
def test_what_was_trained_into_a_run_folder_is_loaded_from_it(run, head):
    recipe = replace(plain_recipe(config()), model=replace(plain_recipe(config()).model, head=head))
    trained = train_base_network(recipe, BASE, CONTEXT, run)
    assert run.finished
    loaded = load_base_network(recipe, run, CONTEXT)
    assert type(loaded.head) is type(trained.head) is (CosineHead if head == "cosine" else nn.Linear)
    assert same(loaded.backbone.state_dict(), trained.backbone.state_dict())
    assert same(loaded.head.state_dict(), trained.head.state_dict())
    assert run.about()["seconds"] > 0


def test_a_head_on_a_projection_is_discarded_with_it(run):
    trained = train_base_network(config(), BASE, CONTEXT, run)
    assert config().model.projection
    assert trained.head is None
    assert load_base_network(config(), run, CONTEXT).head is None


def test_a_run_folder_changes_nothing_in_what_is_trained(run):
    inside, outside = (train_base_network(config(), BASE, CONTEXT, where).backbone for where in (run, None))
    assert same(inside.state_dict(), outside.state_dict())


def test_a_given_network_is_the_one_that_is_trained():
    network = new_base_network(config(), CLASSES, CONTEXT)
    trained = train_base_network(config(), BASE, CONTEXT, network=network)
    assert trained.backbone is network.backbone
    assert same(trained.backbone.state_dict(), train_base_network(config(), BASE, CONTEXT).backbone.state_dict())


def test_loading_never_trains(run):
    with pytest.raises(StoreError, match=r"training is not finished.*--resume"):
        load_base_network(config(), run, CONTEXT)


def test_weights_of_another_architecture_are_refused(run):
    train_base_network(config(), BASE, CONTEXT, run)
    with pytest.raises(StoreError, match=r"weights\.safetensors is of another architecture"):
        load_base_network(config("model.width=3"), run, CONTEXT)


def test_validation_selects_by_held_out_base_images():
    """Oracle: train for 1, 2, … epochs on the part that is left, judge each by hand, take the first best."""
    # Under this schedule a shorter training is the beginning of a longer one.
    assignments = ["train.lr=0.03", "train.validation_share=0.4", "train.schedule=step", "model.width=4"]

    def recipe_of(epochs, selection):
        return small_config(*assignments, f"train.epochs={epochs}", f"train.selection={selection}")

    recipe = recipe_of(4, "validation")
    train, held_out = validation_split(recipe, BASE)
    assert sorted([*train.rows, *held_out.rows]) == list(range(len(BASE)))
    assert held_out.counts == {0: 3, 1: 3, 2: 2, 3: 2}  # 40% of 7, 7, 6, 6
    chosen = train_base_network(recipe, BASE, CONTEXT).backbone

    accuracies, states = [], []
    for epochs in range(1, 5):
        backbone = train_base_network(recipe_of(epochs, "last"), train, CONTEXT).backbone
        features_of = FeatureCache(backbone, preprocess_of(recipe), CONTEXT.device, quiet=True)
        features, labels = features_of(train).double().numpy(), train.labels
        means = [features[labels == label].mean(0) for label in range(CLASSES)]
        right = 0
        for feature, label in zip(features_of(held_out).double().numpy(), held_out.labels, strict=True):
            cosines = [feature @ mean / np.linalg.norm(feature) / np.linalg.norm(mean) for mean in means]
            right += int(np.argmax(cosines)) == label
        accuracies.append(right)
        states.append(backbone.state_dict())
    assert len(set(accuracies)) > 1, "otherwise there is nothing to choose"
    assert same(chosen.state_dict(), states[int(np.argmax(accuracies))])


def test_an_estimate_counts_the_validation_after_every_epoch(monkeypatch):
    """By a clock that ticks when it is read: one second for every part that is timed."""
    seconds = count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    base = part([20, 20, 20], 0)
    settings = ("train.epochs=3", "train.batch=10")
    whole = estimate_base_training(small_config(*settings), base, CONTEXT)
    split = ("train.selection=validation", "train.validation_share=0.5")
    validated = estimate_base_training(small_config(*settings, *split), base, CONTEXT)
    assert validated == pytest.approx(whole / 2 + 3)  # half of the steps, and all images through the network each time
