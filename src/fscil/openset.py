"""Open-set recognition: scores for whether an image belongs to any class of the gallery, and thresholds for them.

A score is high for images of known classes. All are functions of the cosines to the class means alone, so nothing has
to be updated when classes are enrolled or forgotten.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from fscil.errors import ConfigError, DataError

SCALE = 16.0  # of the cosines in softmax and energy
NEIGHBOURS = 10  # classes after the nearest one, with which it is compared


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a score is computed from: n images against a gallery of C >= 1 classes."""

    cosines: Tensor  # (n, C)

    @cached_property
    def best(self) -> Tensor:
        """(n, at most 1 + NEIGHBOURS) cosines of the nearest classes, nearest first."""
        return self.cosines.topk(min(1 + NEIGHBOURS, self.cosines.shape[1]), dim=1).values


# With a single class there is none to compare with: every score is then its cosine, or increases with it.


def cosine(seen: Evidence) -> Tensor:
    """(n,) cosine to the nearest class: the maximum logit (Vaze et al., 2022) of a nearest-mean classifier."""
    return seen.best[:, 0]


def margin(seen: Evidence) -> Tensor:
    """(n,) lead of the nearest class over the runner-up."""
    return seen.best[:, 0] - seen.best[:, 1] if seen.best.shape[1] > 1 else cosine(seen)


def ratio(seen: Evidence) -> Tensor:
    """(n,) distance to the nearest class over that to the runner-up (Mendes Júnior et al., 2017), negated."""
    distances = 1 - seen.best
    return -distances[:, 0] / distances[:, 1].clamp_min(1e-6) if seen.best.shape[1] > 1 else cosine(seen)


def neighbours(seen: Evidence) -> Tensor:
    """(n,) lead of the nearest class over the mean of the next NEIGHBOURS.

    The neighbourhood-aware cosine (Park et al., 2023) is the softmax over the same few: to first order, the same thing.
    """
    return seen.best[:, 0] - seen.best[:, 1:].mean(1) if seen.best.shape[1] > 1 else cosine(seen)


def contrast(seen: Evidence) -> Tensor:
    """(n,) mean of `cosine` and `neighbours`: the nearest class should be near, and nearer than others are."""
    return (cosine(seen) + neighbours(seen)) / 2


def softmax(seen: Evidence) -> Tensor:
    """(n,) log of the nearest class's softmax probability (Hendrycks and Gimpel, 2017)."""
    return (SCALE * seen.cosines).log_softmax(1).max(1).values if seen.best.shape[1] > 1 else cosine(seen)


def energy(seen: Evidence) -> Tensor:
    """(n,) free energy (Liu et al., 2020), negated and in units of cosine: a soft maximum over all classes."""
    return (SCALE * seen.cosines).logsumexp(1) / SCALE


SCORES: dict[str, Callable[[Evidence], Tensor]] = {
    "cosine": cosine,
    "margin": margin,
    "ratio": ratio,
    "neighbours": neighbours,
    "contrast": contrast,
    "softmax": softmax,
    "energy": energy,
}
DEFAULT_SCORE = "contrast"  # chosen on base training classes, as results/openset.md tells


@dataclass(frozen=True)
class Calibration:
    """When a photo is called unknown: where its score is below the threshold.

    Attributes
    ----------
    score : str
        A key of SCORES. Under the two-covariance rule "log_ratio": that of the nearest class, plus a share of the
        information in its photos.
    threshold : float
        The smallest score that is accepted.
    false_accept : float
        Share of unknown images that may be accepted, as asked for.
    false_reject : float or None
        Share of images of enrolled classes that are rejected, as measured; None without such images.
    unknowns, knowns : int
        Numbers of images of unknown things and of enrolled classes that it was set from.

    Examples
    --------
    >>> found = Classifier.load("birds.fscil").calibrate("photos/held_out", false_accept=0.5)
    >>> found.score, found.unknowns, found.knowns
    ('log_ratio', 2, 6)
    """

    score: str
    threshold: float
    false_accept: Annotated[float, Meta(ge=0, le=1)]
    false_reject: Annotated[float, Meta(ge=0, le=1)] | None
    unknowns: Annotated[int, Meta(ge=0)]
    knowns: Annotated[int, Meta(ge=0)]


def threshold_at(unknown_scores: Tensor, false_accept: float) -> float:
    """The smallest threshold that accepts (score >= threshold) at most this share of the (n,) unknowns."""
    if not 0 <= false_accept < 1:
        raise ConfigError(
            f"a false-accept rate of {false_accept} is not possible: give a share from 0 to below 1, like 0.05."
        )
    if not len(unknown_scores):
        raise DataError("no image of an unknown class to calibrate with. Give some that show none of the classes.")
    falling = unknown_scores.sort(descending=True).values
    allowed = min(int(false_accept * len(falling) + 1e-9), len(falling) - 1)  # in floating point 0.29 * 100 is below 29
    # In the scores' own precision: a step of float64 would vanish where a float32 score is compared with it.
    return float(torch.nextafter(falling[allowed], torch.full_like(falling[allowed], torch.inf)))
