"""How a few-shot class-incremental classifier is judged: pure functions of predictions and targets.

Accuracies are fractions. Class numbers are places by arrival, so the base classes are 0..base_classes-1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[Any]


def accuracy(predicted: Ints, target: Ints) -> float | None:
    """Share of (n,) images whose prediction is right; undefined without images."""
    return float(np.mean(predicted == target)) if len(target) else None


def harmonic_accuracy(base: float, novel: float) -> float:
    """Equation 6 of the paper: high only where both are high; 0 when both are 0."""
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
    """One session's figures; novel and harmonic do not exist before the first new class."""

    average: float  # over all test images of the classes seen so far: the papers' "class-wise average accuracy"
    base: float
    novel: float | None
    harmonic: float | None
    class_mean: float


def session_scores(predicted: Ints, target: Ints, base_classes: int) -> Scores:
    """The figures of one session from its (n,) predictions and targets."""
    old = target < base_classes
    average, base = accuracy(predicted, target), accuracy(predicted[old], target[old])
    class_mean = class_mean_accuracy(predicted, target)
    if average is None or base is None or class_mean is None:
        raise ValueError("no test image of a base class")
    novel = accuracy(predicted[~old], target[~old])
    harmonic = None if novel is None else harmonic_accuracy(base, novel)
    return Scores(average, base, novel, harmonic, class_mean)


def performance_drop(averages: Sequence[float]) -> float:
    """PD: average accuracy of the first session less that of the last."""
    return averages[0] - averages[-1]


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half the width of its 95% interval by Student's t; no interval from a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None
    from scipy.special import stdtrit

    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, float(stdtrit(len(values) - 1, 0.975)) * spread
