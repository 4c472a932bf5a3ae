"""Every metric against scikit-learn, scipy or a count by hand."""

import doctest
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics

from fscil import metrics
from fscil.errors import TrainingError
from fscil.metrics import (
    accuracy,
    auroc,
    class_mean_accuracy,
    confusion_matrix,
    failed_trainings,
    fpr_at_tpr,
    harmonic_accuracy,
    mean_and_interval,
    oscr,
    performance_drop,
    session_scores,
)


@st.composite
def answers(draw):
    classes = draw(st.integers(2, 12))
    labels = st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=60)
    predicted, target = np.array(draw(labels)).T
    return predicted, target, classes


def test_harmonic_accuracy_on_the_papers_example():
    """60 base classes all right, 5 new ones all wrong: 92.3% on average, and nothing learned."""
    target = np.repeat(np.arange(65), 100)
    predicted = np.where(target < 60, target, 0)
    scores = session_scores(predicted, target, base_classes=60)
    assert round(100 * scores.average, 1) == 92.3
    assert (scores.base, scores.novel, scores.harmonic) == (1.0, 0.0, 0.0)


def test_harmonic_accuracy_by_hand():
    assert harmonic_accuracy(0.0, 0.0) == 0.0
    assert harmonic_accuracy(0.5, 0.5) == pytest.approx(0.5)
    assert harmonic_accuracy(0.615, 0.43) == pytest.approx(2 * 0.615 * 0.43 / 1.045)


@given(st.floats(0, 1), st.floats(0, 1))
def test_harmonic_accuracy_lies_between_and_is_symmetric(base, novel):
    found = harmonic_accuracy(base, novel)
    assert found == harmonic_accuracy(novel, base)
    assert min(base, novel) - 1e-9 <= found <= (base + novel) / 2 + 1e-9


@given(answers())
def test_figures_agree_with_scikit_learn(case):
    predicted, target, classes = case
    assert accuracy(predicted, target) == pytest.approx(sklearn_metrics.accuracy_score(target, predicted))
    expected = sklearn_metrics.confusion_matrix(target, predicted, labels=range(classes))
    assert np.array_equal(confusion_matrix(predicted, target, classes), expected)
    recall = sklearn_metrics.recall_score(target, predicted, labels=np.unique(target), average="macro", zero_division=0)
    assert class_mean_accuracy(predicted, target) == pytest.approx(recall)


def test_class_mean_is_balanced_accuracy():
    random = np.random.default_rng(0)
    target = np.repeat(np.arange(7), random.integers(1, 40, 7))
    predicted = np.where(random.random(len(target)) < 0.6, target, random.integers(0, 7, len(target)))
    expected = sklearn_metrics.balanced_accuracy_score(target, predicted)
    assert class_mean_accuracy(predicted, target) == pytest.approx(expected)
    assert class_mean_accuracy(predicted, target) != pytest.approx(accuracy(predicted, target))


@given(answers(), st.integers(1, 12))
def test_session_scores_by_counting(case, base_classes):
    predicted, target, _ = case
    pairs = list(zip(predicted.tolist(), target.tolist(), strict=True))
    base = [guess == true for guess, true in pairs if true < base_classes]
    novel = [guess == true for guess, true in pairs if true >= base_classes]
    if not base:
        with pytest.raises(ValueError, match="base class"):
            session_scores(predicted, target, base_classes)
        return
    scores = session_scores(predicted, target, base_classes)
    assert scores.average == pytest.approx((sum(base) + sum(novel)) / len(pairs))
    assert scores.base == pytest.approx(sum(base) / len(base))
    if novel:
        share = sum(novel) / len(novel)
        assert scores.novel == pytest.approx(share)
        assert scores.harmonic == pytest.approx(harmonic_accuracy(scores.base, share))
    else:
        assert scores.novel is None
        assert scores.harmonic is None


@given(answers())
def test_the_confusion_matrix_holds_every_figure(case):
    predicted, target, classes = case
    matrix = confusion_matrix(predicted, target, classes)
    assert matrix.sum() == len(target)
    assert matrix.trace() / matrix.sum() == pytest.approx(accuracy(predicted, target))


def test_confusion_of_narrow_integers_does_not_wrap_around():
    predicted, target = np.array([199, 3], np.uint8), np.array([198, 150], np.uint8)
    matrix = confusion_matrix(predicted, target, 200)
    assert (matrix[198, 199], matrix[150, 3], matrix.sum()) == (1, 1, 2)


def test_a_prediction_outside_the_classes_is_not_counted_as_another():
    with pytest.raises(IndexError):
        confusion_matrix(np.array([3, 0]), np.array([0, 1]), 3)


def test_without_images_a_figure_is_undefined():
    nothing = np.array([], np.int64)
    assert accuracy(nothing, nothing) is None
    assert class_mean_accuracy(nothing, nothing) is None


def test_performance_drop_of_the_papers_row():
    averages = [79.0, 70.5, 67.1, 63.4, 61.2, 59.2, 58.1, 56.3, 54.1]
    assert performance_drop(averages) == pytest.approx(24.9)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_interval_is_students(values):
    mean, half = mean_and_interval(values)
    assert mean == pytest.approx(np.mean(values))
    error = stats.sem(values)
    if error > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
        assert (mean - half, mean + half) == (pytest.approx(low), pytest.approx(high))
    else:
        assert half == pytest.approx(0, abs=1e-6)


def test_one_value_has_no_interval():
    assert mean_and_interval([61.5]) == (61.5, None)


# Known against unknown. Few different values, so that ties are common.
SCORES = st.lists(st.integers(-3, 3).map(lambda value: value / 4), min_size=1, max_size=40).map(np.array)


@given(SCORES, SCORES)
def test_auroc_is_scikit_learns(known, unknown):
    is_known = np.repeat([1, 0], [len(known), len(unknown)])
    expected = sklearn_metrics.roc_auc_score(is_known, np.concatenate([known, unknown]))
    assert auroc(known, unknown) == pytest.approx(expected, abs=1e-12)


@given(SCORES, SCORES, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_fpr_at_tpr_is_the_first_point_of_scikit_learns_curve_that_reaches_it(known, unknown, tpr):
    is_known = np.repeat([1, 0], [len(known), len(unknown)])
    scores = np.concatenate([known, unknown])
    false_positive, true_positive, _ = sklearn_metrics.roc_curve(is_known, scores, drop_intermediate=False)
    expected = false_positive[np.argmax(true_positive >= tpr - 1e-12)]
    assert fpr_at_tpr(known, unknown, tpr) == pytest.approx(expected, abs=1e-12)


def test_fpr_at_tpr_counts_knowns_exactly():
    """0.95 * 20 is 19.000000000000004 to a computer, and 19 of 20 are enough."""
    assert fpr_at_tpr(np.arange(20), np.array([0.5])) == 0
    assert fpr_at_tpr(np.arange(20), np.array([1.0])) == 1  # equal to the threshold is accepted


@given(SCORES, SCORES, st.randoms(use_true_random=False))
def test_oscr_is_the_area_under_the_curve_drawn_threshold_by_threshold(known, unknown, random):
    correct = np.array([random.random() < 0.6 for _ in known])
    points = [(0.0, 0.0)]
    for threshold in sorted({*known, *unknown}, reverse=True):
        points.append((np.mean(unknown >= threshold), np.mean(correct & (known >= threshold))))
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    assert oscr(known, correct, unknown) == pytest.approx(area, abs=1e-12)
    assert oscr(known, correct, unknown) <= min(auroc(known, unknown), correct.mean()) + 1e-12


def test_open_set_figures_at_their_ends():
    high, low = np.array([2.0, 3.0]), np.array([0.0, 1.0, 1.5])
    assert (auroc(high, low), fpr_at_tpr(high, low), oscr(high, np.array([True, False]), low)) == (1, 0, 0.5)
    assert (auroc(low, high), fpr_at_tpr(low, high), oscr(low, np.array([True] * 3), high)) == (0, 1, 0)


@pytest.mark.parametrize("judge", [auroc, fpr_at_tpr])
def test_open_set_figures_need_both_kinds_of_image(judge):
    with pytest.raises(ValueError, match="got 0 and 2"):
        judge(np.empty(0), np.ones(2))
    with pytest.raises(ValueError, match="got 2 and 0"):
        judge(np.ones(2), np.empty(0))


@pytest.mark.parametrize(
    ("first_session", "base_classes", "expected"),
    [
        ([80.63, 78.07, 4.7], 60, [False, False, True]),  # chance is 1.67
        ([80.63, 78.07, 5.1], 60, [False, False, False]),  # has learned something
        ([2.0, 1.5, 1.7], 60, [False, False, False]),  # none has: there is nothing to compare with
        ([12.0, 4.0], 60, [False, False]),
        ([90.0, 17.0], 6, [False, True]),
        ([90.0, 45.0], 6, [False, False]),
        ([100.0, 50.0], 2, [False, False]),
        ([1.0], 60, [False]),
    ],
)
def test_a_training_that_failed_stays_at_chance_where_others_do_not(first_session, base_classes, expected):
    assert failed_trainings([value / 100 for value in first_session], base_classes) == expected


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(metrics) == (0, 2)


@pytest.mark.parametrize("measure", [auroc, fpr_at_tpr])
def test_scores_that_are_no_numbers_are_an_error(measure):
    """Sorted, NaN would be the highest score of all."""
    for known, unknown in (([0.1, np.nan], [0.2]), ([0.1], [np.nan])):
        with pytest.raises(TrainingError, match=r"1 of [23] scores are NaN"):
            measure(np.array(known), np.array(unknown))
