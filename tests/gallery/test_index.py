"""Candidates from an index, against a comparison with all classes."""

import random
from copy import deepcopy

import pytest
import torch

pytest.importorskip("faiss")

from fscil.classifier.decision import Decision
from fscil.classifier.prediction import predictions
from fscil.errors import ConfigError
from fscil.gallery import COSINE, Gallery, Photo, TwoCovariance, TwoCovarianceRule, class_rows, index
from fscil.gallery.choosing import usual_calibration

DIM, CLASSES = 160, 600
NOW = "2026-01-31T12:00:00+00:00"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """An index for galleries that a test can fill."""
    monkeypatch.setenv(index.VARIABLE, "faiss")
    monkeypatch.setattr(class_rows, "LEAST_CLASSES", 100)
    monkeypatch.setattr(index, "CANDIDATES", 30)
    monkeypatch.setattr(index, "MAX_CHANGED", 20)


def centres(count, seed=0):
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed))


def drawn(centre, seed, spread=0.5):
    """A photo of a class."""
    return centre + spread * torch.randn(DIM, generator=torch.Generator().manual_seed(seed))


def photo(feature, name="photo"):
    return Photo(name, feature, name, NOW)


def filled(rule, classes=CLASSES):
    """Classes of 1 to 4 photos, and a query for each."""
    made, queries = Gallery(DIM, rule), []
    for number, centre in enumerate(centres(classes)):
        photos = [photo(drawn(centre, 10 * number + shot), f"{number} {shot}") for shot in range(1 + number % 4)]
        made.enroll(f"class {number}", photos)
        queries.append(drawn(centre, 10 * number + 9))
    return made, torch.stack(queries)


def two_covariance():
    means = centres(40, seed=1)
    photos = torch.stack([drawn(mean, 5000 + 4 * row + shot) for row, mean in enumerate(means) for shot in range(4)])
    return TwoCovarianceRule(TwoCovariance.fit(photos, torch.arange(40).repeat_interleave(4)))


@pytest.mark.parametrize("rule", [COSINE, two_covariance()], ids=["cosine", "two_covariance"])
def test_the_nearest_class_is_among_the_candidates(rule):
    made, queries = filled(rule)
    nearest = made.scores(queries).argmax(1).tolist()
    found = [rows.tolist() for rows in made.candidates(queries, 2)]
    assert sum(row in rows for row, rows in zip(nearest, found, strict=True)) >= 0.99 * CLASSES
    assert all(rows == sorted(set(rows)) and 2 <= len(rows) <= 30 for rows in found)


@pytest.mark.parametrize("rule", [COSINE, two_covariance()], ids=["cosine", "two_covariance"])
def test_answers_are_those_of_a_comparison_with_all(rule, monkeypatch):
    made, queries = filled(rule)
    found = predictions(made, Decision(), queries[:50], top=2)
    monkeypatch.setenv(index.VARIABLE, "none")
    expected = predictions(made.under(rule), Decision(), queries[:50], top=2)
    same = [one for one, other in zip(found, expected, strict=True) if one.label == other.label]
    assert len(same) >= 49
    for one, other in zip(found, expected, strict=True):
        if one.label == other.label:
            assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-3)


def test_a_photo_is_unknown_among_candidates_where_it_is_among_all(monkeypatch):
    """The odds of "known" fall with the number of classes, and the candidates are a few of them."""
    rule = two_covariance()
    made, queries = filled(rule)
    made.reject("class 3", [photo(drawn(queries[3], 1, spread=0.1), "no")])  # its number of classes is another one
    decision = Decision(probability=usual_calibration(rule.model))
    asked = torch.cat([queries[:10], centres(10, seed=7)])
    found = predictions(made, decision, asked, top=1)
    monkeypatch.setenv(index.VARIABLE, "none")
    expected = predictions(made.under(rule), decision, asked, top=1)
    assert {each.state == "unknown" for each in expected} == {True, False}
    for one, other in zip(found, expected, strict=True):
        assert (one.state == "unknown") == (other.state == "unknown")
        assert one.unknown_probability == pytest.approx(other.unknown_probability, rel=1e-3)


def test_it_keeps_in_step_with_enrolling_improving_and_forgetting():
    choose = random.Random(0)
    made, queries = filled(COSINE, 150)
    own = {f"class {number}": query for number, query in enumerate(queries)}
    list(made.candidates(queries, 2))  # makes the index
    for number in range(150, 400):
        name = f"class {number}" if number % 3 else choose.choice(list(own))
        own[name] = centres(1, seed=number)[0]
        if name in made:
            made.replace_photos(name, [], [photo(own[name], f"other {number}")])
        else:
            made.enroll(name, [photo(own[name], f"new {number}")])
        if number % 5 == 0:
            gone = choose.choice(list(own))
            made.forget(gone)
            del own[gone]
        asked = choose.sample(list(own), 3)
        features = torch.stack([own[each] for each in asked])
        for each, rows in zip(asked, made.candidates(features, 2), strict=True):
            names = [made.names[row] for row in rows.tolist()]
            exact = made.names[int(made.scores(own[each][None]).argmax())]
            assert exact in names
    assert len(made) == len(own)


def test_where_all_near_classes_were_forgotten_farther_ones_are_found():
    made, _ = filled(COSINE, 300)
    crowd = centres(1, seed=3)[0]
    for number in range(40):  # more than the index finds
        made.enroll(f"alike {number}", [photo(drawn(crowd, number, spread=0.01), f"alike {number}")])
    list(made.candidates(crowd[None], 2))  # makes the index
    for number in range(40):
        made.forget(f"alike {number}")
    (found,) = predictions(made, Decision(), crowd[None], top=3)
    expected = [made.names[row] for row in made.scores(crowd[None])[0].topk(3).indices.tolist()]
    assert [name for name, _ in found.ranking] == expected


def test_a_negative_example_counts_among_candidates():
    made, queries = filled(COSINE)
    made.reject("class 7", [photo(queries[7], "no")])
    made.reject("class 500", [photo(queries[500], "no")])
    found = predictions(made, Decision(), queries[[7, 8]], top=1)
    assert found[0].label != "class 7"
    assert found[1].label == "class 8"


def test_a_copy_has_an_index_of_its_own():
    made, queries = filled(COSINE, 150)
    list(made.candidates(queries[:1], 2))
    copy = deepcopy(made)
    made.forget("class 0")
    (rows,) = copy.candidates(queries[:1], 2)
    assert copy.names[int(rows[copy.scores(queries[:1], rows).argmax()])] == "class 0"


def test_few_classes_or_no_wish_for_it_and_all_are_compared(monkeypatch):
    made, queries = filled(COSINE, 99)
    assert made.candidates(queries, 2) is None
    monkeypatch.delenv(index.VARIABLE)
    made, queries = filled(COSINE, 120)
    assert made.candidates(queries, 2) is None


def test_an_index_that_is_not_known(monkeypatch):
    monkeypatch.setenv(index.VARIABLE, "fais")
    with pytest.raises(ConfigError, match=r'no index "fais".*faiss'):
        Gallery(DIM)
