"""Objectives: modules of their own in training, checkpoint and run folder; nothing changes where there is none."""

import copy
from dataclasses import replace

import pytest
import torch
from small_training import BASE, STEPS, config, interrupt_in, same
from torch import nn
from torch.nn import functional as F

from fscil.errors import ConfigError
from fscil.experiments.base_networks import base_key
from fscil.methods import METHODS
from fscil.protocol import Protocol
from fscil.training.base_network import OBJECTIVES, Objective
from fscil.training.base_training import (
    load_base_network,
    new_base_network,
    recipe_step,
    train_base_network,
)
from fscil.training.build import views_of
from fscil.training.loop import Trainer
from fscil.training.run_folder import Run
from helpers import CONTEXT, small_config

DECAY = 0.5


class Imitation(Objective):
    """One part of all that an objective may have: a trained vector, a slow copy, a queue, a counter, random numbers."""

    def __init__(self, recipe, backbone, classes):
        super().__init__(recipe, backbone, classes)
        self.centers = nn.Parameter(torch.zeros(classes, backbone.feature_dim))
        self.teacher = copy.deepcopy(backbone).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(5, backbone.feature_dim))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def losses(self, network, batch):
        (view,) = replace(views_of(self.recipe), count=1)(batch.pixels, batch.sizes, batch.generator)
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), network.backbone.parameters(), strict=True):
                slow.lerp_(fast, 1 - DECAY)
            taught = self.teacher(view + 0.1 * torch.randn(view.shape, generator=batch.generator))
        features = network.backbone(view)
        yield F.cross_entropy(self.recipe.loss.scale * network.head(network.projection(features)), batch.labels)
        features = network.backbone(view)
        yield F.mse_loss(features, taught + self.queue.mean(0)) + F.mse_loss(features, self.centers[batch.labels])
        self.queue[self.place] = taught[0]
        self.place.copy_((self.place + 1) % len(self.queue))

    def extras(self):
        return {"centers": self.centers, "queue": self.queue}

    @classmethod
    def passes(cls, recipe):
        return 3.5


@pytest.fixture(autouse=True)
def registered():
    OBJECTIVES.register("imitation")(Imitation)
    yield
    OBJECTIVES.unregister("imitation")


@pytest.fixture
def recipe():
    return config("mixing.repeats=0", "train.objective=imitation")


@pytest.fixture
def run(tmp_path, recipe):
    return Run.create(tmp_path / "run", recipe, {})


def trained(recipe, run=None, before=None):
    network, calls = new_base_network(recipe, 4, CONTEXT), 0
    usual = recipe_step(recipe, network, 4)

    def step(batch):
        nonlocal calls
        calls += 1
        if before:
            before(calls)
        return usual(batch)

    result = train_base_network(recipe, BASE, CONTEXT, run, network, make_step=lambda *_: step)
    return network.state_dict(), result


def test_its_modules_are_trained_and_keep_their_state(recipe):
    before = new_base_network(recipe, 4, CONTEXT).state_dict()
    after, _ = trained(recipe)
    assert after["objective.place"] == STEPS % 5
    assert after["objective.queue"].abs().sum(1).min() > 0
    for name in ("objective.centers", "objective.teacher.conv1.weight", "head.weight", "backbone.conv1.weight"):
        assert not torch.equal(before[name], after[name]), name
    assert not torch.equal(after["objective.teacher.conv1.weight"], after["backbone.conv1.weight"])


@pytest.mark.parametrize("stopped_in", [1, 4, 8])
def test_after_ctrl_c_it_goes_on_to_the_same_bits(recipe, run, stopped_in):
    with pytest.raises(KeyboardInterrupt):
        trained(recipe, run, interrupt_in(stopped_in))
    checkpoint, about = run.load("checkpoint")
    assert about["step"] == stopped_in
    assert {"network.objective.queue", "network.objective.place", "momentum.objective.centers"} <= checkpoint.keys()
    assert "momentum.objective.teacher.conv1.weight" not in checkpoint
    torch.manual_seed(99)
    assert same(trained(recipe, run)[0], trained(recipe)[0])


def test_what_it_leaves_for_the_method_is_in_the_run_folder(recipe, run):
    state, result = trained(recipe, run)
    assert result.extras.keys() == {"centers", "queue"}
    assert torch.equal(result.extras["centers"], state["objective.centers"])
    assert not result.extras["centers"].requires_grad
    loaded = load_base_network(recipe, run, CONTEXT)
    assert same(loaded.extras, result.extras)
    assert same(loaded.backbone.state_dict(), result.backbone.state_dict())


def test_nothing_is_there_without_one(tmp_path):
    run = Run.create(tmp_path / "plain", config(), {})
    result = train_base_network(config(), BASE, CONTEXT, run)
    assert result.extras == load_base_network(config(), run, CONTEXT).extras == {}
    assert not run.extras.exists()
    assert not any("objective" in name for name in new_base_network(config(), 4, CONTEXT).state_dict())


def test_an_estimate_leaves_it_as_it_was(recipe):
    network = new_base_network(recipe, 4, CONTEXT)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert Trainer(recipe.train, CONTEXT).estimate(network, BASE, recipe_step(recipe, network, 4)) > 0
    assert same(network.state_dict(), before)


def test_it_enters_the_key_of_the_network(recipe):
    without = replace(recipe, train=replace(recipe.train, objective=""))
    assert base_key(recipe) != base_key(without)
    torch.testing.assert_close(
        new_base_network(recipe, 4, CONTEXT).head.weight, new_base_network(without, 4, CONTEXT).head.weight
    )


def test_the_images_that_pass_a_network_are_counted_its_way(recipe):
    seen = METHODS["ncm"].images_seen(recipe, BASE, Protocol(4, 1, 0, 1))
    assert seen == STEPS * 8 * 3.5


def test_a_wrong_name_and_mixed_classes_are_refused():
    with pytest.raises(ConfigError, match=r'no objective named "imitatoin"\. Did you mean "imitation"'):
        new_base_network(config("mixing.repeats=0", "train.objective=imitatoin"), 4, CONTEXT)
    with pytest.raises(ConfigError, match=r"mixing\.repeats = 0"):
        small_config("mixing.repeats=1", "train.objective=imitation")
