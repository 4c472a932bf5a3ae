"""What a new model is worth on held-out photos: accuracy, confusions, the cost of "unknown", whether that will do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fscil.classifier.checking import Check, compare_labels
from fscil.classifier.decision import Decision, Thresholds
from fscil.classifier.held_out import held_out_ratios, left_out_evidence
from fscil.gallery import Gallery
from fscil.runtime.text import first_few

FOLDS, GROUPS = 10, 5  # of photos, of classes: few, because every one estimates the covariances again
SETTINGS = (0.3, 0.5, 0.7)  # thresholds for unknown whose cost is told
RELIABLE, USABLE, OFTEN = 0.95, 0.85, 0.75  # right among the known answers; share of photos that get one
HOW_TO_IMPROVE = (
    "More photos of the classes that are confused help most; or raise the threshold (fscil calibrate MODEL --known-at "
    "0.8)."
)
WORTH_KNOWING, MOST_CONFUSED = 0.15, 5  # share of a class that is taken for another; how many such pairs are told
WEAK, MOST_WEAK = 0.75, 5  # accuracy of a class that is named; how many


@dataclass(frozen=True)
class UnknownCost:
    """What a threshold for unknown would do."""

    threshold: float
    rejected: float  # share of photos of the classes that it calls unknown
    accepted: float | None  # share of photos of a class that was left out that it takes for another; None: too few


@dataclass(frozen=True)
class FitCheck:
    """The result of holding out every photo once, while the others made the model.

    Attributes
    ----------
    check : Check
        Accuracy in all and per class, confused pairs. Labels are those of the nearest class.
    known : float
        Share of the photos that are known, and not maybe or unknown.
    known_right : float or None
        Share of those that are named rightly; None without any.
    costs : tuple of UnknownCost
        Of three thresholds.
    """

    check: Check
    known: float
    known_right: float | None
    costs: tuple[UnknownCost, ...]

    @property
    def record(self) -> dict[str, Any]:
        """Numbers alone: names of classes may have to be forgotten."""
        return {
            "photos": self.check.photos,
            "accuracy": self.check.accuracy,
            "known": self.known,
            "known right": self.known_right,
            "unknown": [[cost.threshold, cost.rejected, cost.accepted] for cost in self.costs],
        }

    @property
    def lines(self) -> list[str]:
        """For the user."""
        found = [
            f"held-out photos: each of {self.check.photos} was named by a model of the others, in {FOLDS} rounds; now "
            f"all are enrolled",
            f"accuracy {self.check.accuracy:.1%}{self._weakest()}",
            *self._confusions(),
            *(f"  {line}" for line in self._costs()),
        ]
        return [*found, self.verdict]

    @property
    def verdict(self) -> str:
        """Whether this will do, in a sentence."""
        if self.known_right is None:
            return f"No answer is known: do not rely on it yet. {HOW_TO_IMPROVE}"
        if self.known_right < RELIABLE:
            rely = "do not rely on it yet" if self.known_right < USABLE else "look at what matters"
            return f"About 1 of {1 / (1 - self.known_right):.0f} known answers is wrong: {rely}. {HOW_TO_IMPROVE}"
        if self.known < OFTEN:
            return (
                f"This will do with a look at the doubtful ones: {self.known_right:.0%} of its known answers are "
                f"right, but only {self.known:.0%} of photos get one; the others are maybe or unknown."
            )
        return (
            f"This will do: {self.known:.0%} of photos get a known answer, {self.known_right:.0%} of these are right."
        )

    def _weakest(self) -> str:
        weak = sorted((each for each in self.check.classes if each.accuracy < WEAK), key=lambda each: each.accuracy)
        names = [f"{each.name} {each.correct} of {each.photos}" for each in weak]
        return f"; weakest: {first_few(names, MOST_WEAK)}" if names else ""

    def _confusions(self) -> list[str]:
        photos = {each.name: each.photos for each in self.check.classes}
        worth = [
            f"{true} is taken for {label} in {count} of {photos[true]}"
            for true, label, count in self.check.confused
            if count > 1 and count >= WORTH_KNOWING * photos[true]
        ]
        return worth[:MOST_CONFUSED]

    def _costs(self) -> list[str]:
        lines = []
        for cost in self.costs:
            taken = "" if cost.accepted is None else f", {cost.accepted:.0%} of photos of other classes are not"
            lines.append(
                f"with fscil calibrate MODEL --unknown-at {cost.threshold:g}: {cost.rejected:.0%} of photos of your "
                f"classes are unknown{taken}"
            )
        return lines


def check_fit(gallery: Gallery, decision: Decision, constants: Mapping[str, Any], quiet: bool) -> FitCheck | None:
    """None if there are too few photos to hold some out."""
    features, labels = gallery.features()
    found = held_out_ratios(features, labels, constants, FOLDS, quiet)
    if found is None or decision.probability is None:
        return None
    unseen = left_out_evidence(features, labels, constants, GROUPS, quiet)
    nearest = found.ratios.topk(1, dim=1)
    likely, unknown = decision.probability.of_nearest(
        found.ratios, nearest.values, found.evidence, decision.unknown_prior
    )
    accepted = (unknown <= decision.thresholds.unknown).tolist()
    states = [decision.state(ok, value) for ok, value in zip(accepted, likely[:, 0].tolist(), strict=True)]
    names: Sequence[str] = gallery.names
    true = [names[place] for place in found.labels.tolist()]
    named = [names[place] for place in nearest.indices[:, 0].tolist()]
    sure = [right == name for right, name, state in zip(true, named, states, strict=True) if state == "known"]
    return FitCheck(
        compare_labels(true, named, names),
        len(sure) / len(true),
        sum(sure) / len(sure) if sure else None,
        tuple(_cost(decision, len(names), threshold, found.evidence, unseen) for threshold in SETTINGS),
    )


def _cost(decision: Decision, classes: int, threshold: float, known: Tensor, unseen: Tensor | None) -> UnknownCost:
    limits = Thresholds(decision.thresholds.known, threshold)
    smallest = replace(decision, thresholds=limits, calibration=None).smallest_accepted(classes)
    accepted = None if unseen is None else float((unseen >= smallest).float().mean())
    return UnknownCost(threshold, float((known < smallest).float().mean()), accepted)
