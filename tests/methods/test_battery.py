"""What every method must do, whatever it is made of: one battery, run against each of them."""

import numpy as np
import pytest
import torch

from fscil.data.images import ArrayPixels, Images
from fscil.experiments import sessions
from fscil.methods import METHODS
from fscil.protocol import Protocol
from fscil.training.loop import Trainer
from helpers import NAMES, small_config, tiny_dataset

CPU = torch.device("cpu")
DATA = tiny_dataset(12, train=8, test=4)
PROTOCOL = Protocol(6, 2, 3, 2)
BASE = sessions.base_images(DATA, PROTOCOL)
SHOTS = (2, 1)

# What a method may keep of the images it has seen: per class; or of the base, and then per new class.
PER_CLASS = {"icarl": 2, "eeil": 2, "lucir": 2}
OF_BASE_AND_PER_NEW_CLASS = {"topic": (min(400, len(BASE)), 1)}
KEEPS_EVERYTHING = {"joint"}
# What a state has beside memory: the network, and what a method learns on top of it.
NETWORK = {"backbone", "head", "attention", "mapping", "scale"}


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


@pytest.fixture
def make(name, vectors):
    """A new, untrained method. Every figure is small; every part is switched on."""

    def build(*assignments):
        config = small_config(
            "train.epochs=4",
            "train.batch=16",
            "incremental.steps=3",
            "incremental.lr=0.02",
            "incremental.exemplars=2",
            f"data.word_vectors={vectors}",
            *assignments,
        )
        return METHODS[name](config, Trainer(config.train, CPU, quiet=True), NAMES)

    return build


@pytest.fixture(scope="module")
def fitted_states():
    return {}


@pytest.fixture
def fitted(name, make, fitted_states):
    """A method that has learned the base, from a state made once; calling it again gives another of the same."""
    if name not in fitted_states:
        method = make()
        method.fit_base(BASE, SHOTS)
        fitted_states[name] = method.state()

    def build():
        method = make()
        method.load_state(fitted_states[name])
        return method

    return build


def session(number, shots=2, draw=0, protocol=PROTOCOL):
    protocol = protocol.with_shots(shots)
    chosen = DATA.train.select(protocol.samples(DATA.train.labels, number, draw))
    return chosen.relabel(protocol.seen(number))


def judged_after(number):
    return sessions.test_images(DATA, PROTOCOL, number)


def own_copy(images):
    """The same images in a pixel store of their own, which can be spoilt."""
    pixels, _ = images.batch(np.arange(len(images)))
    return Images.of(ArrayPixels(pixels.copy()), images.labels)


def test_learns_the_base(make):
    """Training images are told apart better than by chance, by far."""
    method = make("train.epochs=30", "model.width=4")
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
        assert scores.device == CPU


def test_new_images_change_the_answer(fitted):
    """What a method says of the new classes hangs on the images it was given of them."""
    first, second = fitted(), fitted()
    first.learn(session(1, draw=0))
    second.learn(session(1, draw=1))
    test = judged_after(1)
    assert not torch.equal(first.scores(test), second.scores(test))


def test_the_data_of_an_old_session_is_not_reachable_later(name, make):
    """A method whose earlier images are spoilt behind its back goes on exactly as one whose are not."""
    if name in KEEPS_EVERYTHING:
        pytest.skip("it declares all data as memory")
    answers = []
    for spoil in (False, True):
        method = make()
        parts = [own_copy(BASE), *(own_copy(session(number)) for number in (1, 2, 3))]
        for number, images in enumerate(parts):
            method.fit_base(images, SHOTS) if number == 0 else method.learn(images)
            state = method.state()  # all it may take along: features that were cached, say, stay behind
            method = make()
            method.load_state(state)
            if spoil:
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


def test_same_seed_same_predictions(make):
    answers = []
    for _ in range(2):
        method = make()
        method.fit_base(BASE, SHOTS)
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


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_save_load_continue_equals_not_having_stopped(fitted, make, stop):
    straight, stopped = fitted(), fitted()
    for number in range(1, stop + 1):
        stopped.learn(session(number))
    state = {key: value.clone() for key, value in stopped.state().items()}
    resumed = make()
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
    scores = method.scores(sessions.test_images(DATA, protocol, 3))
    assert scores.shape[1] == 9
    assert scores.isfinite().all()


def test_walks_do_not_influence_each_other(fitted):
    """The second draw gives the same alone as after the first."""
    after = list(sessions.walk_all(fitted(), DATA, PROTOCOL, (2,), (0, 1)))[1]
    alone = next(iter(sessions.walk_all(fitted(), DATA, PROTOCOL, (2,), (1,))))
    for one, other in zip(after.sessions, alone.sessions, strict=True):
        np.testing.assert_array_equal(one.predicted, other.predicted)
