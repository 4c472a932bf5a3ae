"""When a classifier says "unknown" or "maybe", and how probable its answers are."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor

from fscil.errors import ConfigError
from fscil.gallery import COSINE, DecisionRule, rule_from_state, unknown_scores_of
from fscil.gallery.probability import ProbabilityCalibration
from fscil.openset import Calibration
from fscil.runtime.validation import as_type, invalid

# Of a user's photos most show one of the classes. Above it many right answers are lost: results/photos.md.
DEFAULT_UNKNOWN_PRIOR = 0.3
LEAST = 1e-6  # probability of a prior or threshold, and difference to 1: beyond it, their odds are lost in rounding

SOURCE = "the decision in model.json"  # in errors

State: TypeAlias = Literal["known", "maybe", "unknown"]


@dataclass(frozen=True)
class Thresholds:
    """Two thresholds in probabilities, between them three states: known, maybe, unknown.

    Attributes
    ----------
    known : float
        The smallest probability of the nearest class at which it is known; below, the photo maybe shows it. At 0 there
        is no maybe.
    unknown : float
        The largest probability of "unknown" at which a photo is not called unknown. At 1 none ever is.
    """

    known: float = 0.5
    unknown: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.known <= 1:
            raise ConfigError(f"a threshold of {self.known} for known is not possible: give a probability, like 0.8.")
        if not LEAST <= self.unknown <= 1:
            raise ConfigError(
                f"a threshold of {self.unknown} for unknown is not possible: give a probability above 0, like 0.5."
            )


NO_MAYBE = Thresholds(known=0.0)  # as models decided that were written before there was a maybe


@dataclass(frozen=True)
class Decision:
    """What turns the scores of a decision rule into answers.

    Attributes
    ----------
    calibration : Calibration or None
        The threshold below which a photo is called unknown, if one was set.
    probability : ProbabilityCalibration or None
        From log-likelihood ratios to probabilities; None under the cosine rule.
    unknown_prior : float
        How probable it is, before a photo is seen, that it shows none of the classes.
    thresholds : Thresholds
        Where known ends and unknown begins. Without probabilities they have no effect, and that for unknown none where
        there is a calibration.
    """

    calibration: Calibration | None = None
    probability: ProbabilityCalibration | None = None
    unknown_prior: float = DEFAULT_UNKNOWN_PRIOR
    thresholds: Thresholds = Thresholds()

    def __post_init__(self) -> None:
        if not LEAST <= self.unknown_prior <= 1 - LEAST:
            raise ConfigError(
                f"an unknown prior of {self.unknown_prior} is not possible: give a share between 0 and 1, like 0.1."
            )

    @property
    def rejects(self) -> bool:
        """Whether a photo can be called unknown at all."""
        return self.calibration is not None or self.probability is not None

    def effective_thresholds(self, classes: int) -> Thresholds:
        """Those that decide in a gallery of this many classes, in probabilities, also where the one for unknown comes
        from a calibration.
        """
        if not (self.calibration and self.probability):
            return self.thresholds
        unknown = self.probability.unknown_at(self.calibration.threshold, classes, self.unknown_prior)
        return replace(self.thresholds, unknown=min(max(unknown, LEAST), 1.0))

    def smallest_accepted(self, classes: int) -> float:
        """The smallest evidence with which a photo is not unknown in a gallery of this many classes; minus infinity
        where none is.
        """
        if self.calibration:
            return self.calibration.threshold
        if self.probability is None or self.thresholds.unknown == 1:
            return -math.inf
        # "unknown" has the probability u under the prior p where it has 1/2 under a prior whose odds are u/(1-u) less.
        odds = (1 - self.unknown_prior) / self.unknown_prior * self.thresholds.unknown / (1 - self.thresholds.unknown)
        return self.probability.threshold(classes, 1 / (1 + odds))

    def evidence(self, rule: DecisionRule, scores: Tensor, counts: Tensor) -> Tensor:
        """(n, C) scores of classes with (C,) photos -> (n,) the score by which "unknown" is decided: a photo is not
        unknown from `smallest_accepted` on.
        """
        return rule.unknown_score(self.calibration.score if self.calibration else rule.default_score, scores, counts)

    def state(self, accepted: bool, probability: float | None) -> State:
        """probability: of the nearest class; None under the cosine rule, which knows no maybe."""
        if not accepted:
            return "unknown"
        return "maybe" if probability is not None and probability < self.thresholds.known else "known"

    def to_about(self, rule: DecisionRule) -> dict[str, Any]:
        """What model.json says of it; under the cosine rule the threshold alone."""
        about: dict[str, Any] = {"calibration": asdict(self.calibration) if self.calibration else None}
        if rule.name != COSINE.name:
            probability = asdict(self.probability) if self.probability else None
            about["decision"] = {
                "rule": rule.name,
                "probability": probability,
                "unknown_prior": self.unknown_prior,
                "thresholds": asdict(self.thresholds),
            }
        return about

    def with_thresholds(self, known: float | None = None, unknown: float | None = None) -> "Decision":
        """Another threshold for known or for unknown; the latter also replaces a calibration.

        A ConfigError if it is no probability, or if there are no probabilities.
        """
        if self.probability is None:
            raise ConfigError("This model has no probabilities, so no threshold can be one. Run: fscil upgrade MODEL")
        before = self.thresholds
        after = Thresholds(before.known if known is None else known, before.unknown if unknown is None else unknown)
        return replace(self, thresholds=after, calibration=self.calibration if unknown is None else None)

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> "Decision":
        """What model.json says of it. Raises an FscilError for anything that `to_about` does not write."""
        found = as_type(dict(about), _About, SOURCE)
        rule = found.decision.rule if found.decision else COSINE.name
        if found.calibration and found.calibration.score not in unknown_scores_of(rule):
            raise invalid(SOURCE, f'there is no score "{found.calibration.score}" under the rule "{rule}"')
        if not found.decision:
            return cls(found.calibration)
        stored = found.decision
        return cls(found.calibration, stored.probability, stored.unknown_prior, stored.thresholds)


@dataclass(frozen=True)
class _StoredDecision:
    rule: str
    probability: ProbabilityCalibration | None
    unknown_prior: float
    thresholds: Thresholds = NO_MAYBE


@dataclass(frozen=True)
class _About:
    """The part of model.json that is read here."""

    calibration: Calibration | None = None
    decision: _StoredDecision | None = None


def rule_from(about: Mapping[str, Any], state: Mapping[str, Tensor]) -> DecisionRule:
    """The decision rule of a model. state: the tensors it consists of; none for the cosine rule."""
    found = as_type(dict(about), _About, SOURCE).decision
    return rule_from_state(found.rule, state) if found else COSINE
