"""Metrics of few-shot class-incremental learning: pure functions of predictions and targets.

Accuracies are fractions. Classes are numbered by arrival, so the base classes are 0..base_classes-1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fscil.errors import TrainingError

Ints: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[Any]


def accuracy(predicted: Ints, target: Ints) -> float | None:
    """Fraction of (n,) images that are predicted correctly; None without images."""
    return float(np.mean(predicted == target)) if len(target) else None


def harmonic_accuracy(base: float, novel: float) -> float:
    """Harmonic mean of the accuracies on base and novel classes (equation 6 of the paper).

    It is high only where both are high.

    Parameters
    ----------
    base, novel
        Accuracies on the test images of the base and of the novel classes, as fractions.

    Returns
    -------
    float
        The harmonic mean; 0 where both are 0.

    Examples
    --------
    >>> round(harmonic_accuracy(0.8, 0.4), 3)
    0.533
    >>> harmonic_accuracy(1.0, 0.0)
    0.0
    """
    return 2 * base * novel / (base + novel) if base + novel > 0 else 0.0


def confusion_matrix(predicted: Ints, target: Ints, classes: int) -> NDArray[np.int64]:
    """(classes, classes) counts: rows are true classes, columns predicted ones."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (target, predicted), 1)
    return counts


def class_mean_accuracy(predicted: Ints, target: Ints) -> float | None:
    """Mean over classes of each class's accuracy; differs from `accuracy` where classes have unequally many images."""
    if not len(target):
        return None
    total = np.bincount(target)
    right = np.bincount(target[predicted == target], minlength=len(total))
    return float(np.mean(right[total > 0] / total[total > 0]))


@dataclass(frozen=True)
class Scores:
    """The accuracies of one session; novel and harmonic are None before the first new class."""

    average: float  # over all test images of the classes seen so far: the papers' "class-wise average accuracy"
    base: float
    novel: float | None
    harmonic: float | None
    class_mean: float


def session_scores(predicted: Ints, target: Ints, base_classes: int) -> Scores:
    """The accuracies of one session from its (n,) predictions and targets."""
    old = target < base_classes
    average, base = accuracy(predicted, target), accuracy(predicted[old], target[old])
    class_mean = class_mean_accuracy(predicted, target)
    if average is None or base is None or class_mean is None:
        raise ValueError("no test image of a base class")
    novel = accuracy(predicted[~old], target[~old])
    harmonic = None if novel is None else harmonic_accuracy(base, novel)
    return Scores(average, base, novel, harmonic, class_mean)


def auroc(known: Floats, unknown: Floats) -> float:
    """Probability that a known image scores above an unknown one; ties count half. (n,) and (m,), high = known."""
    return oscr(known, np.ones(len(known), bool), unknown)


def oscr(known: Floats, correct: NDArray[np.bool_], unknown: Floats) -> float:
    """Area under correct classification rate over false-positive rate (Dhamija et al., 2018). (n,), (n,) and (m,).

    That is the probability that a known image is classified correctly and scores above an unknown one.
    """
    _need_both(known, unknown)
    rising = np.sort(unknown)
    below = np.searchsorted(rising, known, "left") + np.searchsorted(rising, known, "right")  # twice, ties count half
    return float(below[correct].sum() / (2 * len(known) * len(unknown)))


def fpr_at_tpr(known: Floats, unknown: Floats, tpr: float = 0.95) -> float:
    """Fraction of unknown images accepted by the highest threshold that accepts at least `tpr` of the known ones."""
    _need_both(known, unknown)
    wanted = max(1, math.ceil(tpr * len(known) - 1e-9))  # 0.95 * 20 must be 19 whatever the rounding
    return float(np.mean(unknown >= np.sort(known)[-wanted]))


@dataclass(frozen=True)
class OpenSet:
    """How well one score separates known images from unknown ones."""

    auroc: float
    fpr95: float
    oscr: float


def open_set(known: Floats, correct: NDArray[np.bool_], unknown: Floats) -> OpenSet:
    """The three metrics of one score. (n,), (n,) and (m,), high = known."""
    return OpenSet(auroc(known, unknown), fpr_at_tpr(known, unknown), oscr(known, correct, unknown))


def _need_both(known: Floats, unknown: Floats) -> None:
    if not len(known) or not len(unknown):
        raise ValueError(f"needs known and unknown images; got {len(known)} and {len(unknown)}")
    if nan := int(np.isnan(known).sum() + np.isnan(unknown).sum()):
        raise TrainingError(
            f"{nan} of {len(known) + len(unknown)} scores are NaN: the network's features are not finite. Train it "
            f"anew, with a lower train.lr."
        )


def performance_drop(averages: Sequence[float]) -> float:
    """PD: average accuracy of the first session minus that of the last."""
    return averages[0] - averages[-1]


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half the width of its 95% interval by Student's t; no interval from a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None
    from scipy.special import stdtrit

    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, float(stdtrit(len(values) - 1, 0.975)) * spread


def failed_trainings(first_session: Sequence[float], base_classes: int) -> list[bool]:
    """Which of several trainings of one recipe, by their average accuracy in session 0, did not learn anything.

    These are about as good as guessing (at most three times as good) and at most a fifth as good as the best one.
    """
    limit = min(3 / base_classes, max(first_session) / 5)
    return [value <= limit for value in first_session]
