"""What every method must do, whatever it is made of: one battery, run against each of them."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from fscil.data.images import ArrayPixels, Images
from fscil.experiments import sessions
from fscil.methods import METHODS
from fscil.protocol import Protocol
from fscil.training.base_training import train_base_network
from fscil.training.build import base_images
from helpers import CONTEXT, NAMES, small_config, tiny_dataset, trained_method, untrained_method

DATA = tiny_dataset(12, train=8, test=4)
PROTOCOL = Protocol(6, 2, 3, 2)
BASE = base_images(DATA, PROTOCOL)
SHOTS = (2, 1)

# What a method may keep of the images it has seen: per class; or of the base, and then per new class.
PER_CLASS = {"icarl": 2, "eeil": 2, "lucir": 2, "orco": 2}
OF_BASE_AND_PER_NEW_CLASS = {"topic": (min(400, len(BASE)), 1)}
KEEPS_EVERYTHING = {"joint", "joint_balanced", "joint_balanced_ncm"}
# What a state has beside memory: the network, and what a method learns on top of it.
NETWORK = {"backbone", "head", "attention", "mapping", "scale", "projection", "projection_of_base", "targets"}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A small table of word vectors: nearby classes have nearby vectors."""
    random = np.random.default_rng(0)
    groups = random.normal(size=(4, 8))
    lines = []
    for label, name in enumerate(NAMES):
        vector = groups[label % 4] + 0.3 * random.normal(size=8)
        lines.append(" ".join([name, *(f"{value:.4f}" for value in vector)]))
    path = tmp_path_factory.mktemp("words") / "vectors.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def config(vectors):
    """Every number is small; every part is switched on."""

    def build(*assignments):
        return small_config(
            "train.epochs=4",
            "train.batch=16",
            "incremental.steps=3",
            "incremental.lr=0.02",
            "incremental.exemplars=2",
            f"data.word_vectors={vectors}",
            *assignments,
        )

    return build


@pytest.fixture(scope="module")
def base_networks():
    """Networks trained on BASE, each once: {recipe: network}."""
    return {}


@pytest.fixture
def make(name, config, base_networks):
    """A method on a base network of its own, before fit_base; the settings concern base training too."""

    def build(*assignments):
        settings = config(*assignments)
        recipe = METHODS[name].base_recipe(settings)
        if recipe not in base_networks:
            base_networks[recipe] = train_base_network(recipe, BASE, CONTEXT)
        return METHODS[name](settings, deepcopy(base_networks[recipe]), CONTEXT, NAMES)

    return build


@pytest.fixture
def blank(name, config):
    """A method on an untrained network, to load a state into."""
    return lambda: untrained_method(name, config(), 6)


@pytest.fixture(scope="module")
def fitted_states():
    return {}


@pytest.fixture
def fitted(name, make, blank, fitted_states):
    """A method that has learned the base, from a state made once; calling it again gives another of the same."""
    if name not in fitted_states:
        method = make()
        method.fit_base(BASE, SHOTS)
        fitted_states[name] = method.state()

    def build():
        method = blank()
        method.load_state(fitted_states[name])
        return method

    return build


def session(number, shots=2, draw=0, protocol=PROTOCOL):
    protocol = protocol.with_shots(shots)
    chosen = DATA.train.select(protocol.samples(DATA.train.labels, number, draw))
    return chosen.relabel(protocol.seen(number))


def judged_after(number):
    return sessions.evaluation_images(DATA, PROTOCOL, number)


def own_copy(images):
    """The same images in a pixel store of their own, which can be overwritten."""
    pixels, _ = images.batch(np.arange(len(images)))
    return Images.of(ArrayPixels(pixels.copy()), images.labels)


def test_learns_the_base(make):
    """Training images are classified far better than by chance."""
    method = make("train.epochs=30", "model.width=8")
    method.fit_base(BASE, SHOTS)
    scores = method.scores(BASE)
    assert scores.shape == (len(BASE), 6)
    assert scores.isfinite().all()
    assert (scores.argmax(1).numpy() == BASE.labels).mean() > 0.5


@pytest.mark.parametrize("shots", SHOTS)
def test_scores_all_classes_after_every_session(fitted, shots):
    method = fitted()
    for number in (1, 2, 3):
        method.learn(session(number, shots))
        test = judged_after(number)
        scores = method.scores(test)
        assert scores.shape == (len(test), 6 + 2 * number)
        assert scores.isfinite().all()
        assert scores.device.type == "cpu"


def test_new_images_change_the_answer(fitted):
    """The scores depend on the images that a method was given of the new classes."""
    first, second = fitted(), fitted()
    first.learn(session(1, draw=0))
    second.learn(session(1, draw=1))
    test = judged_after(1)
    assert not torch.equal(first.scores(test), second.scores(test))


def test_the_data_of_an_old_session_is_not_reachable_later(name, make):
    """A method whose earlier images are overwritten continues exactly as one whose images are not."""
    if name in KEEPS_EVERYTHING:
        pytest.skip("it declares all data as memory")
    answers = []
    for overwrite in (False, True):
        method = make()
        parts = [own_copy(BASE), *(own_copy(session(number)) for number in (1, 2, 3))]
        for number, images in enumerate(parts):
            method.fit_base(images, SHOTS) if number == 0 else method.learn(images)
            state = method.state()  # all that it may keep: cached features, for example, must not matter
            method = make()
            method.load_state(state)
            if overwrite:
                images.pixels.array[:] = 0
        answers.append(method.scores(judged_after(3)))
    assert torch.equal(*answers)


def test_memory_within_its_budget(name, fitted):
    method = fitted()
    seen = len(BASE)
    for number in (1, 2, 3):
        new = session(number)
        method.learn(new)
        seen += len(new)
        kept = method.memory()
        state = method.state()
        pixels = [key for key, value in state.items() if value.dtype == torch.uint8]
        assert sum(len(state[key]) for key in pixels if state[key].ndim == 4) == kept.images
        assert all(state[key].ndim == 4 for key in pixels)
        numbers = {key: value.numel() for key, value in state.items() if value.is_floating_point()}
        network = sum(size for key, size in numbers.items() if key.partition(".")[0] in NETWORK)
        assert sum(numbers.values()) - network <= kept.floats
        if name in KEEPS_EVERYTHING:
            assert kept.images == seen
        else:
            of_base, per_new_class = OF_BASE_AND_PER_NEW_CLASS.get(name, (0, 0))
            assert kept.images <= PER_CLASS.get(name, 0) * (6 + 2 * number) + of_base + per_new_class * 2 * number
        if name in PER_CLASS:
            assert kept.images > 0


def test_same_seed_same_predictions(name, config):
    """From base training on, whatever was drawn from torch's global generator before."""
    answers = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        method = trained_method(name, config(), BASE, SHOTS)
        method.learn(session(1))
        answers.append(method.scores(judged_after(1)))
    assert torch.equal(*answers)


def test_another_seed_another_network(make):
    answers = []
    for seed in (0, 1):
        method = make(f"train.seed={seed}")
        method.fit_base(BASE, SHOTS)
        answers.append(method.scores(judged_after(0)))
    assert not torch.equal(*answers)


def test_fitting_the_base_again_starts_over(name, make):
    """Nothing of the first call is left, be it exemplars or prototypes."""
    if name == "cec":
        pytest.skip("it goes on training the backbone")
    once, twice = make(), make()
    once.fit_base(BASE, SHOTS)
    twice.fit_base(BASE, SHOTS)
    twice.fit_base(BASE, SHOTS)
    states = once.state(), twice.state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_save_load_continue_equals_not_having_stopped(fitted, blank, stop):
    straight, stopped = fitted(), fitted()
    for number in range(1, stop + 1):
        stopped.learn(session(number))
    state = {key: value.clone() for key, value in stopped.state().items()}
    resumed = blank()
    resumed.load_state(state)
    for number in (1, 2, 3):
        straight.learn(session(number))
        if number > stop:
            resumed.learn(session(number))
    test = judged_after(3)
    assert torch.equal(straight.scores(test), resumed.scores(test))
    assert straight.memory() == resumed.memory()


def test_the_state_does_not_change_behind_the_holders_back(fitted):
    """A state taken before a session is that of before the session, also after it."""
    method = fitted()
    state = method.state()
    before = {key: value.clone() for key, value in state.items()}
    method.learn(session(1))
    assert all(torch.equal(state[key], before[key]) for key in before)


def test_one_way_sessions(fitted):
    method = fitted()
    protocol = Protocol(6, 1, 6, 1)
    for number in range(1, 4):
        method.learn(session(number, shots=1, protocol=protocol))
    scores = method.scores(sessions.evaluation_images(DATA, protocol, 3))
    assert scores.shape[1] == 9
    assert scores.isfinite().all()


def test_walks_do_not_influence_each_other(fitted):
    """The second draw gives the same alone as after the first."""
    after = list(sessions.walk_all(fitted(), DATA, PROTOCOL, (2,), (0, 1)))[1]
    alone = next(iter(sessions.walk_all(fitted(), DATA, PROTOCOL, (2,), (1,))))
    for one, other in zip(after.sessions, alone.sessions, strict=True):
        np.testing.assert_array_equal(one.predicted, other.predicted)


def test_has_a_title_of_its_own(name):
    """What tables and figures call it; no other method may be called the same."""
    title = METHODS[name].title
    assert title == title.strip() != ""
    assert [other for other in METHODS if METHODS[other].title == title] == [name]


def test_says_how_often_it_is_judged(name):
    assert METHODS[name].judged in ("every", "last")


def test_images_in_training_are_at_least_those_of_base_training(name, config):
    recipe = METHODS[name].base_recipe(config())
    steps = recipe.train.epochs * (len(BASE) // recipe.train.batch)
    views = steps * recipe.train.batch * recipe.views.count
    assert METHODS[name].images_seen(config(), BASE, PROTOCOL) >= views * (1 + recipe.mixing.repeats)
