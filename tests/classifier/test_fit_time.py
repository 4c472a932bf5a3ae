"""How long fit says it takes: encoding, the decision rule and the check; by a clock that ticks when it is read."""

from itertools import count

import pytest

from fscil.classifier.finetuning import TimeLimit
from fscil.classifier.fit_time import deciding_seconds, encoding_seconds
from serving import photo, tiny_classifier


@pytest.fixture
def ticking(monkeypatch):
    """A second passes between two looks at the clock."""
    seconds = count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))


@pytest.mark.parametrize(("photos", "timed"), [(2, 2), (40, 4), (400, 20), (2000, 32)])
def test_some_photos_of_all_classes_are_timed_after_a_warm_up(ticking, photos, timed):
    encoder = tiny_classifier().encoder
    asked = []

    class Sources(list):
        """The photos, each drawn when it is asked for."""

        def __len__(self):
            return photos

        def __getitem__(self, place):
            asked.append(place)
            return photo(1, place)

    assert encoding_seconds(encoder, Sources()) == pytest.approx(photos / timed)
    assert len(asked) == timed
    assert max(asked) >= photos * (1 - 1 / timed) - 1


def test_the_check_is_most_of_what_follows(ticking):
    """Ten parts of the photos and five of the classes are held out; without the check two estimates and the search."""
    assert deciding_seconds(600, 15, 1280, check=True) - deciding_seconds(600, 15, 1280, check=False) == 15
    assert 2 < deciding_seconds(600, 15, 1280, check=False) < 6
    assert deciding_seconds(5, 5, 1280, check=True) == 0  # one photo each: class means decide


def test_training_ends_in_time_for_what_follows():
    assert TimeLimit(1, began=0.0, encoding=2.0, deciding=18.0).end_of_training == 60 - 18 - 3 * 2
    assert TimeLimit(10, began=0.0, encoding=2.0, deciding=18.0).end_of_training == 600 - 30 - 3 * 2
