"""Where the class vector of a new class starts: at its mean feature, but no nearer to base images than old vectors are.

A mean of few features is near every image: features have much in common, behind a ReLU above all, where they are never
negative. Trained class vectors have learned to have little of that. So the part of a new vector along the mean of all
base features is chosen such that its cosines with base images reach as high as those of old class vectors do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

DEVIATIONS = 2.0  # how high cosines reach: their mean and this many standard deviations
SHARES = 1999  # that are tried, of a vector along the mean of base features, between -1 and 1


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """mean: (d,), covariance: (d, d) of normalised features."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "FeatureMoments":
        """features: (n, d), which are normalised here."""
        unit = F.normalize(features)
        mean = unit.mean(0)
        return cls(mean, (unit - mean).T @ (unit - mean) / len(unit))

    def reach(self, vectors: Tensor) -> Tensor:
        """(n, d) class vectors -> (n,) how high their cosines with these features reach."""
        unit = F.normalize(vectors)
        variance = (unit @ self.covariance * unit).sum(1)
        return unit @ self.mean + DEVIATIONS * variance.clamp_min(0).sqrt()


def imprinted(means: Tensor, old: Tensor, base: FeatureMoments) -> Tensor:
    """(new, d) mean normalised features and (classes, d) class vectors -> (new, d) class vectors of length 1.

    Of the vectors in the plane of a mean and the mean of base features, the one nearest to the latter that reaches no
    higher than old vectors do on average; the lowest where all do.
    """
    common = F.normalize(base.mean, dim=0)
    own = F.normalize(means - (means @ common)[:, None] * common)
    shares = torch.linspace(-1, 1, SHARES + 2)[1:-1]
    others = (1 - shares.square()).sqrt()
    # Of the vectors others * own + shares * common: the mean and the variance of cosines.
    mean = others * (own @ base.mean)[:, None] + shares * (common @ base.mean)
    crossed = own @ base.covariance
    variance = (
        others.square() * (crossed * own).sum(1)[:, None]
        + 2 * shares * others * (crossed @ common)[:, None]
        + shares.square() * (common @ base.covariance @ common)
    )
    reach = mean + DEVIATIONS * variance.clamp_min(0).sqrt()
    allowed = reach <= base.reach(old).mean()
    last = SHARES - 1 - allowed.flip(1).int().argmax(1)
    chosen = torch.where(allowed.any(1), last, reach.argmin(1))
    return F.normalize(others[chosen][:, None] * own + shares[chosen][:, None] * common)
