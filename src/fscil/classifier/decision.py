"""When a classifier says "unknown", and how probable its answers are."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fscil.errors import ConfigError
from fscil.gallery import COSINE, DecisionRule, rule_from_state
from fscil.gallery.probability import ProbabilityCalibration
from fscil.openset import Calibration, Evidence

# Of a user's photos most show one of the classes. Above it many right answers are lost: results/photos.md.
DEFAULT_UNKNOWN_PRIOR = 0.3


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
    """

    calibration: Calibration | None = None
    probability: ProbabilityCalibration | None = None
    unknown_prior: float = DEFAULT_UNKNOWN_PRIOR

    def __post_init__(self) -> None:
        if not 0 < self.unknown_prior < 1:
            raise ConfigError(
                f"an unknown prior of {self.unknown_prior} is not possible: give a share between 0 and 1, like 0.1."
            )

    @property
    def rejects(self) -> bool:
        """Whether a photo can be called unknown at all."""
        return self.calibration is not None or self.probability is not None

    def accepted(self, rule: DecisionRule, scores: Tensor) -> Tensor:
        """(n, C) -> (n,) whether a photo is believed to show one of the classes.

        By the threshold that was set; without one, where "unknown" is not more probable than 1/2; without
        probabilities, always.
        """
        if self.calibration:
            return rule.unknown_scores[self.calibration.score](Evidence(scores)) >= self.calibration.threshold
        if self.probability:
            return scores.amax(1) >= self.probability.threshold(self.unknown_prior)
        return torch.ones(len(scores), dtype=torch.bool)

    def to_about(self, rule: DecisionRule) -> dict[str, Any]:
        """What model.json says of it; under the cosine rule the threshold alone."""
        about: dict[str, Any] = {"calibration": asdict(self.calibration) if self.calibration else None}
        if rule.name != COSINE.name:
            probability = asdict(self.probability) if self.probability else None
            about["decision"] = {
                "rule": rule.name,
                "probability": probability,
                "unknown_prior": self.unknown_prior,
            }
        return about

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> "Decision":
        calibration = Calibration(**about["calibration"]) if about["calibration"] else None
        if "decision" not in about:
            return cls(calibration)
        found = about["decision"]
        probability = ProbabilityCalibration(**found["probability"]) if found["probability"] else None
        return cls(calibration, probability, found["unknown_prior"])


def rule_from(about: Mapping[str, Any], state: Mapping[str, Tensor]) -> DecisionRule:
    """The decision rule of a model. state: the tensors it consists of; none for the cosine rule."""
    return rule_from_state(about["decision"]["rule"], state) if "decision" in about else COSINE
