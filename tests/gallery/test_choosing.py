"""Cross-validation over pseudo-novel classes: its parts keep apart, and its trials are those of the model itself."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fscil.gallery.choosing import CANDIDATES, Constants, choose, divisions, make_folds, start, usual_calibration
from fscil.gallery.two_covariance import TwoCovariance


def draw(seed: int, classes: int, photos: int, dim: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(photos)
    means = torch.randn(classes, dim, generator=random)
    return means[labels] + torch.randn(len(labels), dim, generator=random) + 1, labels


def test_divisions_keep_their_parts_apart() -> None:
    labels = torch.arange(9).repeat_interleave(11)[torch.randperm(99, generator=torch.Generator().manual_seed(7))] * 3
    novel = []
    for part in divisions(labels, folds=3):
        novel += part.novel.tolist()
        shots = torch.cat([rows for _, rows in part.shots])
        assert not set(part.photos.tolist()) & set(part.queries.tolist())
        assert not set(shots.tolist()) & (set(part.queries.tolist()) | set(part.photos.tolist()))
        assert (part.labels[part.photos] < len(part.base)).all()
        assert (part.labels[shots] >= len(part.base)).all()
        assert torch.unique(part.labels[part.queries]).tolist() == list(range(9))
    assert sorted(novel) == list(range(9))


@pytest.mark.parametrize("dim", [5, 200])  # fewer and more than photos
@pytest.mark.parametrize(("rescale", "degrees"), [(True, None), (False, None), (False, 7.0)])
def test_trials_score_as_the_model_itself_does(dim: int, rescale: bool, degrees: float | None) -> None:
    features, labels = draw(8, 12, 10, dim)
    constants = Constants(0.4, 0.3, rescale, 1.3, 0.05, degrees=degrees)
    fold = make_folds(features, labels, folds=3)[0]
    part = fold.division
    model = TwoCovariance.fit(features[part.photos], part.labels[part.photos], **vars(constants))
    mapped = model.transform(features)
    for (shots, found), (_, rows) in zip(fold.log_ratios(constants), part.shots, strict=True):
        both = torch.cat([part.photos, rows])
        enrolled = part.labels[both]
        counts = torch.bincount(enrolled)
        means = torch.stack([mapped[both[enrolled == label]].mean(0) for label in range(len(counts))])
        assert counts[len(part.base) :].eq(shots).all()
        expected = model.log_ratio(mapped[part.queries], means, counts)
        torch.testing.assert_close(found.ratios, expected, atol=2e-2, rtol=1e-3)
        torch.testing.assert_close(found.information.double(), model.information(counts), atol=1e-3, rtol=1e-3)


def test_the_choice_is_the_same_every_time_and_no_worse_than_its_start() -> None:
    features, labels = draw(9, 14, 12, 20)
    first, second = choose(features, labels), choose(features, labels)
    assert first == second
    by_constants = {trial.constants: trial.objective for trial in first.trials}
    assert by_constants[first.constants] >= by_constants[start(14)]
    assert len(by_constants) == len(first.trials) > sum(map(len, CANDIDATES.values())) - len(CANDIDATES)
    assert first.calibration_error is not None


@pytest.mark.parametrize("classes", [3, 5])
def test_few_classes_are_calibrated_but_not_searched(classes: int) -> None:
    found = choose(*draw(10, classes, 6, 30))
    assert found.constants == start(classes)
    assert found.calibration is not None
    assert found.calibration_error is not None
    assert len(found.trials) == 1


def test_two_classes_get_the_defaults() -> None:
    found = choose(*draw(11, 2, 6, 30))
    assert (found.constants, found.calibration, found.calibration_error) == (start(2), None, None)


def test_the_usual_calibration_does_not_depend_on_the_unit_of_the_ratios() -> None:
    """A model of half the variance between classes expects smaller ratios, and takes them for as much."""
    model = TwoCovariance.fit(*draw(13, 20, 8, 10))
    weaker = replace(model, psi=model.psi / 2)
    usual, other = usual_calibration(model), usual_calibration(weaker)
    expected, less = (float(each.information(torch.tensor([5]))) for each in (model, weaker))
    assert less < expected
    assert usual.unknown_at(expected, 10) == pytest.approx(other.unknown_at(less, 10))
    assert expected / usual.temperature == pytest.approx(less / other.temperature)


def test_labels_may_be_any_numbers_and_classes_small() -> None:
    features, labels = draw(12, 6, 4, 10)
    assert choose(features, labels * 7 + 3) == choose(features, labels)


def test_fewer_classes_are_shrunk_harder() -> None:
    shrinkages = [start(classes).between_shrinkage for classes in (2, 5, 10, 20)]
    assert shrinkages == sorted(shrinkages, reverse=True)
