"""ProbabilityCalibration of ratios: probabilities are found back, and errors are those of a table counted by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fscil.gallery.probability import (
    CROWDING,
    Asked,
    ProbabilityCalibration,
    calibration_error,
    fit_calibration,
    negative_log_likelihood,
)

USUAL = ProbabilityCalibration(temperature=15.0, slope=0.04, offset=0.5, crowding=CROWDING)


def draw(images: int, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ratios and evidence of "known", which is more than the largest ratio where much is known of that class."""
    ratios = torch.randn(images, classes, generator=random) * 30
    return ratios, ratios.amax(1) + 10 * torch.rand(images, generator=random)


def answers(truth: ProbabilityCalibration, images: int = 20000, classes: int = 4) -> Asked:
    """With targets drawn from the probabilities that `truth` states."""
    random = torch.Generator().manual_seed(0)
    ratios, evidence = draw(images, classes, random)
    stated = truth.log_probabilities(ratios, evidence).exp()
    target = torch.multinomial(stated, 1, generator=random)[:, 0]
    return Asked(ratios, torch.where(target == classes, -1, target), evidence)


def only(asked: Asked, chosen: Tensor) -> Asked:
    return Asked(*(each[chosen] for each in asked))


def test_the_calibration_behind_the_answers_is_found() -> None:
    truth = ProbabilityCalibration(8.0, 0.1, -3.5, CROWDING)
    found = fit_calibration([answers(truth, classes=4), answers(truth, classes=12)], 1000, USUAL)
    assert found.temperature == pytest.approx(truth.temperature, rel=0.1)
    assert found.slope == pytest.approx(truth.slope, rel=0.1)
    assert found.crowding == CROWDING


def test_a_gallery_of_many_classes_has_smaller_odds_of_known() -> None:
    calibration = ProbabilityCalibration(8.0, 0.1, 0.3, crowding=0.7)
    asked = draw(20, 9, torch.Generator().manual_seed(1))
    alone = ProbabilityCalibration(8.0, 0.1, 0.3 - 0.7 * math.log(9))  # what it is for nine classes
    for mine, plain in zip(calibration.probabilities(*asked, 0.2), alone.probabilities(*asked, 0.2), strict=True):
        torch.testing.assert_close(mine, plain)
    assert calibration.offset_among(9) == pytest.approx(alone.offset)
    stated = [calibration.unknown_at(float(each), 9, 0.2) for each in asked[1]]
    torch.testing.assert_close(torch.tensor(stated).double(), alone.probabilities(*asked, 0.2)[1], rtol=1e-5, atol=1e-6)


def test_known_and_unknown_images_of_separate_galleries_weigh_as_those_of_one() -> None:
    every = answers(USUAL, 400)
    known = every.target >= 0
    apart = [only(every, known), only(every, ~known)]
    for prior in (0.5, 0.2):
        together = negative_log_likelihood([every], USUAL, prior)
        assert negative_log_likelihood(apart, USUAL, prior) == pytest.approx(together)
        assert calibration_error([(apart, USUAL)], prior) == pytest.approx(calibration_error([([every], USUAL)], prior))


def test_true_probabilities_have_no_calibration_error_and_false_ones_do() -> None:
    truth = ProbabilityCalibration(8.0, 0.1, -3.5)  # half of the images are unknown, as their weight is
    assert calibration_error([([answers(truth)], truth)]) < 0.03
    assert calibration_error([([answers(truth)], ProbabilityCalibration(0.5, 1.0, 0.0))]) > 0.15


def test_fitting_lowers_the_likelihood_loss() -> None:
    asked = [answers(ProbabilityCalibration(3.0, 0.3, 1.0), 500)]
    assert negative_log_likelihood(asked, fit_calibration(asked, 100, USUAL)) < negative_log_likelihood(asked, USUAL)


def test_few_classes_stay_near_the_usual_calibration() -> None:
    asked = [answers(ProbabilityCalibration(3.0, 0.3, 1.0), 500)]
    far, near = fit_calibration(asked, 1000, USUAL).temperature, fit_calibration(asked, 1, USUAL).temperature
    assert far < near < USUAL.temperature


def test_answers_without_unknown_images_can_be_fitted() -> None:
    every = answers(ProbabilityCalibration(5.0, 0.1, 0.0), 300)
    found = fit_calibration([only(every, every.target >= 0)], 10, USUAL)
    assert all(torch.isfinite(torch.tensor([found.temperature, found.slope, found.offset])))


@given(seed=st.integers(0, 1000), prior=st.floats(0.01, 0.99))
@settings(max_examples=20, deadline=None)
def test_probabilities_sum_to_one_and_keep_the_order(seed: int, prior: float) -> None:
    ratios, evidence = draw(5, 7, torch.Generator().manual_seed(seed))
    known, unknown = ProbabilityCalibration().probabilities(ratios, evidence, prior)
    torch.testing.assert_close(known.sum(1) + unknown, torch.ones(5).double())
    assert torch.equal(known.argmax(1), ratios.argmax(1))
    more, _ = ProbabilityCalibration().probabilities(ratios, evidence, prior / 2)
    assert (more >= known).all()


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_a_certain_prior_is_refused(prior: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        ProbabilityCalibration().probabilities(torch.zeros(1, 2), torch.zeros(1), prior)


def test_the_nearest_classes_have_the_probabilities_they_have_among_all():
    ratios, evidence = draw(20, 9, torch.Generator().manual_seed(0))
    calibration = ProbabilityCalibration(temperature=7.0, slope=0.1, offset=-0.5, crowding=0.8)
    classes, unknown = calibration.probabilities(ratios, evidence, 0.2)
    nearest = ratios.topk(3, dim=1)
    found, none = calibration.of_nearest(ratios, nearest.values, evidence, 0.2)
    torch.testing.assert_close(found, classes.gather(1, nearest.indices), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(none, unknown)


def test_at_the_threshold_known_and_unknown_are_as_probable():
    calibration = ProbabilityCalibration(temperature=7.0, slope=0.1, offset=-0.5, crowding=0.8)
    for prior in (0.05, 0.3, 0.9):
        at = torch.tensor([calibration.threshold(2, prior)])
        assert float(calibration.probabilities(torch.zeros(1, 2), at, prior)[1]) == pytest.approx(0.5, abs=1e-6)


def test_of_large_ratios_no_probability_is_above_one():
    ratios = torch.tensor([[604.944885, -66.27], [1e6, 1e6 - 1], [-1e6, -2e6]])
    calibration = ProbabilityCalibration(temperature=7.3, slope=10.0, offset=0.0)
    for evidence in (torch.full((3,), 1e6), ratios.amax(1)):
        found, unknown = calibration.of_nearest(ratios, ratios, evidence, 0.3)
        assert (found <= 1).all()
        torch.testing.assert_close(found.sum(1) + unknown, torch.ones(3).double(), rtol=1e-6, atol=0)
