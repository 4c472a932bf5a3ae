"""Which images reach a method, when, and under which numbers; and that it is judged by the right ones."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from fscil.data.images import Dataset
from fscil.errors import DataError, TrainingError
from fscil.experiments import sessions
from fscil.methods import Memory, Method
from fscil.openset import SCORES, Evidence
from fscil.protocol import Protocol, published_draw
from fscil.training.build import base_images
from helpers import NAMES, part, tiny_dataset

ORDER = (3, 0, 7, 1, 9, 10, 2, 11, 4, 5, 8, 6)
PROTOCOL = Protocol(6, 2, 3, shots=2, order=ORDER)


class Witness(Method):
    """A method that writes down what it is given, and guesses by a rule that tests can repeat."""

    def __init__(self):
        self.known, self.taught, self.asked = 6, [], []

    def fit_base(self, base, shots):
        raise AssertionError("the base is learned before the walk")

    def learn(self, new):
        assert min(new.counts) == self.known, "the next new class follows on the last"
        self.taught.append(new)
        self.known += len(new.counts)

    def scores(self, images):
        """Each image's own number, turned round the classes known."""
        self.asked.append(images)
        return torch.nn.functional.one_hot(torch.from_numpy(images.rows % self.known), self.known).float()

    def alternatives(self, images):
        return {"first class": torch.eye(self.known)[0].expand(len(images), -1)} if self.known == 6 else {}

    def memory(self):
        return Memory(images=len(self.taught), floats=10 * self.known)

    def state(self):
        return {"known": torch.tensor(self.known)}

    def load_state(self, state):
        self.known, self.taught, self.asked = int(state["known"]), [], []


@pytest.fixture(scope="module")
def dataset():
    return tiny_dataset()


@pytest.fixture(scope="module")
def walked(dataset):
    method = Witness()
    return method, list(sessions.walk(method, dataset, PROTOCOL))


def rows_of(part, classes):
    return sorted(row for row, label in enumerate(part.labels) if label in classes)


def test_the_base_is_every_training_image_of_its_classes(dataset):
    base = base_images(dataset, PROTOCOL)
    assert sorted(base.rows.tolist()) == rows_of(dataset.train, ORDER[:6])
    assert all(ORDER[label] == dataset.train.labels[row] for label, row in zip(base.labels, base.rows, strict=True))
    assert base.pixels is dataset.train.pixels


def test_each_session_is_tested_on_exactly_the_classes_seen(dataset, walked):
    method, results = walked
    for session, images in enumerate(method.asked):
        seen = ORDER[: 6 + 2 * session]
        assert sorted(images.rows.tolist()) == rows_of(dataset.test, seen)
        assert images.pixels is dataset.test.pixels
        truth = [ORDER.index(dataset.test.labels[row]) for row in images.rows]
        assert images.labels.tolist() == truth
        assert results[session].target.tolist() == truth
        assert results[session].classes == len(seen)
    assert len(results) == len(method.asked) == 4


def test_each_session_teaches_its_own_new_classes_only(dataset, walked):
    method, _ = walked
    assert len(method.taught) == 3
    for session, new in enumerate(method.taught, start=1):
        places = [4 + 2 * session, 5 + 2 * session]
        assert new.counts == {places[0]: 2, places[1]: 2}
        assert new.pixels is dataset.train.pixels
        expected = []
        for place in places:
            members = [row for row, label in enumerate(dataset.train.labels) if label == ORDER[place]]
            expected += [members[rank] for rank in published_draw(len(members), 2)]
        assert new.rows.tolist() == expected


def test_results_are_those_of_the_predictions(walked):
    method, results = walked
    for session, (images, result) in enumerate(zip(method.asked, results, strict=True)):
        known = 6 + 2 * session
        guesses = [int(row) % known for row in images.rows]
        assert result.predicted.tolist() == guesses
        right = [guess == truth for guess, truth in zip(guesses, images.labels, strict=True)]
        base = [hit for hit, truth in zip(right, images.labels, strict=True) if truth < 6]
        novel = [hit for hit, truth in zip(right, images.labels, strict=True) if truth >= 6]
        assert result.scores.average == pytest.approx(sum(right) / len(right))
        assert result.scores.base == pytest.approx(sum(base) / len(base))
        assert result.scores.novel == (pytest.approx(sum(novel) / len(novel)) if novel else None)
        assert (result.scores.harmonic is None) == (session == 0)
        assert result.memory == Memory(images=session, floats=10 * known)


def test_alternatives_are_scored_too(walked):
    _, results = walked
    assert results[0].alternatives["first class"].average == pytest.approx(1 / 6)
    assert [result.alternatives for result in results[1:]] == [{}, {}, {}]


def test_a_seeded_draw_takes_other_images(dataset):
    taught = []
    for draw in ("published", 0, 1):
        method = Witness()
        list(sessions.walk(method, dataset, PROTOCOL, draw))
        taught.append([new.rows.tolist() for new in method.taught])
    assert taught[0] != taught[1] != taught[2]


def test_all_ways_start_from_the_same_state(dataset):
    method = Witness()
    walks = list(sessions.walk_all(method, dataset, PROTOCOL, [2, 1], ["published", 4]))
    assert [(walk.shots, walk.draw) for walk in walks] == [(2, "published"), (2, 4), (1, "published"), (1, 4)]
    for walk in walks:
        assert [result.classes for result in walk.sessions] == [6, 8, 10, 12]
        assert [result.session for result in walk.sessions] == [0, 1, 2, 3]
    assert method.known == 6, "the method is given back as it was"
    # One shot is the first of two.
    alone = Witness()
    list(sessions.walk(alone, dataset, PROTOCOL.with_shots(1), 4))
    both = Witness()
    list(sessions.walk(both, dataset, PROTOCOL, 4))
    for one, two in zip(alone.taught, both.taught, strict=True):
        assert one.rows.tolist() == two.rows.tolist()[::2]


def test_what_is_the_same_on_every_way_is_judged_once(dataset):
    class Counting(Witness):
        judged_with_base_alone = 0

        def scores(self, images):
            self.judged_with_base_alone += self.known == 6
            return super().scores(images)

    method = Counting()
    walks = list(sessions.walk_all(method, dataset, PROTOCOL, [2, 1], ["published", 4]))
    assert method.judged_with_base_alone == 1
    (alone,) = sessions.walk_all(Witness(), dataset, PROTOCOL, [1], [4])
    for walk in walks:
        assert walk.sessions[0].scores == alone.sessions[0].scores
        assert walk.sessions[0].alternatives == alone.sessions[0].alternatives


class Costly(Witness):
    judged = "last"


def test_a_method_may_want_to_be_judged_at_the_end_only(dataset):
    """It learns every session all the same."""
    method = Costly()
    (walk,) = sessions.walk_all(method, dataset, PROTOCOL, [2], [4])
    assert [(result.session, result.classes) for result in walk.sessions] == [(0, 6), (3, 12)]
    (walk,) = sessions.walk_all(method, dataset, PROTOCOL, [2], [4], judged=(1,))
    assert [(result.session, result.classes) for result in walk.sessions] == [(1, 8)]


def test_a_class_without_a_test_image_is_named():
    counts = [3] * 12
    counts[9] = counts[4] = 0
    dataset = Dataset(part([6] * 12, 0), part(counts, 10_000), NAMES, "tiny")
    with pytest.raises(DataError, match=r"tiny: 1 classes have no test image \(first: 鹿\)"):
        sessions.evaluation_images(dataset, PROTOCOL, 0)
    with pytest.raises(DataError, match=r"2 classes have no test image"):
        sessions.evaluation_images(dataset, PROTOCOL, 3)
    without = Protocol(6, 2, 2, order=(0, 1, 2, 3, 5, 6, 7, 8, 10, 11))
    assert len(sessions.evaluation_images(dataset, without, 2)) == 30


def test_no_sessions_but_the_base(dataset):
    results = list(sessions.walk(Witness(), dataset, Protocol(6, 2, 0)))
    assert len(results) == 1
    assert np.unique(results[0].target).tolist() == list(range(6))


class Guesser(Witness):
    """Scores at random, the same for an image every time it is asked, and lower for images of unknown classes."""

    def scores(self, images):
        self.asked.append(images)
        table = torch.rand(1000, 12, generator=torch.Generator().manual_seed(0))[images.rows % 1000, : self.known]
        return table - 0.2 * torch.from_numpy((images.rows % 3 == 0).astype(np.float32))[:, None]


def test_classes_of_later_sessions_are_the_unknown(dataset):
    method = Guesser()
    results = list(sessions.walk(method, dataset, PROTOCOL, openset=True))
    # after each session: the images of the classes seen, then those of later classes; the last session has none
    assert [len(images.counts) for images in method.asked] == [6, 6, 8, 4, 10, 2, 12]
    for session, result in enumerate(results[:3]):
        known, unknown = method.asked[2 * session : 2 * session + 2]
        assert sorted(unknown.rows.tolist()) == rows_of(dataset.test, ORDER[6 + 2 * session :])
        assert unknown.pixels is dataset.test.pixels
        judge = Guesser()
        judge.known = 6 + 2 * session
        is_known = np.repeat([1, 0], [len(known), len(unknown)])
        assert result.openset.keys() == SCORES.keys()
        for name, score in SCORES.items():
            scores = np.concatenate([score(Evidence(judge.scores(images))).numpy() for images in (known, unknown)])
            found = result.openset[name]
            assert found.auroc == pytest.approx(roc_auc_score(is_known, scores))
            false_positive, true_positive, _ = roc_curve(is_known, scores, drop_intermediate=False)
            assert found.fpr95 == pytest.approx(false_positive[np.argmax(true_positive >= 0.95)])
            right = judge.scores(known).argmax(1).numpy() == known.labels
            better = np.mean([score > scores[len(known) :] for score in scores[: len(known)]], axis=1)
            assert found.oscr == pytest.approx(np.mean(right * better))
    assert results[3].openset == {}


def test_unknown_images_are_judged_only_when_asked_for(dataset, walked):
    assert all(result.openset == {} for result in walked[1])
    walks = sessions.walk_all(Guesser(), dataset, PROTOCOL, [2], ["published"], openset=True)
    assert [len(result.openset) for result in next(walks).sessions] == [len(SCORES)] * 3 + [0]


def test_unknown_images_change_no_other_figure(dataset):
    plain, beside = [list(sessions.walk(Guesser(), dataset, PROTOCOL, openset=asked)) for asked in (False, True)]
    assert [result.scores for result in plain] == [result.scores for result in beside]


def test_classes_in_no_session_are_not_unknown(dataset):
    some = Protocol(6, 2, 1, order=ORDER[:8])
    assert sorted(sessions.future_images(dataset, some, 0).rows.tolist()) == rows_of(dataset.test, ORDER[6:8])


def test_scores_that_are_no_numbers_are_an_error():
    """The largest of them would be any class."""

    class Diverged(Witness):
        def scores(self, images):
            return super().scores(images) * float("nan")

    with pytest.raises(TrainingError, match=r"NaN after session 0.*train\.lr"):
        list(sessions.walk(Diverged(), tiny_dataset(), PROTOCOL))
