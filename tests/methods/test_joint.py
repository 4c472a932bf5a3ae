"""Joint training: what it is trained on, and when."""

import numpy as np
import torch
from naive import BASE, DATA, fitted, session

from fscil.data.images import ArrayPixels, Images
from fscil.methods import METHODS
from fscil.methods.joint import Joint
from fscil.methods.toolkit.growing_network import GrowingNetwork
from fscil.training.base_training import load_base_network, train_base_network
from fscil.training.run_folder import Run
from helpers import CONTEXT, small_config


def all_of(*parts):
    pixels = np.concatenate([images.batch(np.arange(len(images)))[0] for images in parts])
    return Images.of(ArrayPixels(pixels), np.concatenate([images.labels for images in parts]))


def from_scratch(config, *parts):
    """The plain recipe's network, trained on all of these."""
    recipe = Joint.base_recipe(config)
    return GrowingNetwork(recipe, train_base_network(recipe, all_of(*parts), CONTEXT), CONTEXT)


def same_weights(one, other):
    return all(torch.equal(one[name], other[name]) for name in one if name.startswith(("backbone.", "head.")))


def test_is_a_network_trained_from_scratch_on_all_data():
    method = fitted("joint")
    new = [session(1), session(2)]
    for images in new:
        method.learn(images)
    expected = from_scratch(method.config, BASE, *new)
    assert torch.equal(method.scores(DATA.test), expected.scores(DATA.test))
    assert method.scores(DATA.test).shape[1] == 10


def test_trains_only_when_it_is_asked_for_scores():
    method = fitted("joint")
    start = method.state()
    method.learn(session(1))
    method.learn(session(2))
    assert same_weights(start, method.state())
    method.scores(BASE)
    once = method.state()
    assert once["head.weight"].shape[0] == 10
    method.scores(session(1))
    assert same_weights(once, method.state())


def test_a_state_from_before_that_training_is_enough_to_go_on():
    method, other = fitted("joint"), fitted("joint")
    method.learn(session(1))
    other.load_state(method.state())
    other.learn(session(2))
    expected = from_scratch(method.config, BASE, session(1), session(2))
    assert torch.equal(other.scores(DATA.test), expected.scores(DATA.test))


def test_keeps_all_images():
    method = fitted("joint")
    method.learn(session(1))
    everything = all_of(BASE, session(1))
    assert method.memory().images == len(everything)
    state = method.state()
    np.testing.assert_array_equal(state["exemplars.pixels"].numpy(), everything.batch(np.arange(len(everything)))[0])
    np.testing.assert_array_equal(state["exemplars.labels"].numpy(), everything.labels)


def test_a_finished_run_is_its_base_network_and_no_more(tmp_path):
    """What is trained after base training is neither read from the run folder nor written to it."""
    trained = fitted("joint")
    run = Run.create(tmp_path / "run", trained.config, {})
    run.finish(trained.network.backbone.state_dict(), {}, trained.network.head.state_dict())
    network = load_base_network(Joint.base_recipe(trained.config), run, CONTEXT)
    method = Joint(trained.config, network, CONTEXT)
    method.fit_base(BASE, (2, 1))
    assert same_weights(trained.state(), method.state())
    files = sorted(path.name for path in run.folder.iterdir())
    for joint in (trained, method):
        joint.learn(session(1))
    assert torch.equal(trained.scores(DATA.test), method.scores(DATA.test))
    assert sorted(path.name for path in run.folder.iterdir()) == files


def test_starts_from_the_network_of_finetune_and_is_judged_at_the_end():
    config = small_config()
    assert METHODS["joint"].base_recipe(config) == METHODS["finetune"].base_recipe(config)
    assert Joint.judged == "last"
