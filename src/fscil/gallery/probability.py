"""From log-likelihood ratios to probabilities that hold, and how far off they are.

The ratios of the two-covariance model add up the evidence of all directions as if they were independent, and are too
sure. Naming and rejecting are wrong by different factors, so each has its own: names are a softmax with a temperature
(Guo et al., 2017), the odds of "known" an affine function of the evidence for it (Brümmer and du Preez, 2006): the
largest ratio, plus a share of the information in the photos of that class. Of many classes one is near by chance, so
the odds fall with their number: under Bayes' rule with the evidence of one class by its logarithm, here by a share of
that, `crowding`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

PULL = 10.0  # of the usual calibration, on one from few classes
CROWDING = 0.8  # measured on CUB-200's base classes: galleries of 3 to 80 of them


class Asked(NamedTuple):
    """Images that a gallery was asked about."""

    ratios: Tensor  # (n, C) log-likelihood ratios
    target: Tensor  # (n,) the true classes, -1 where unknown
    evidence: Tensor  # (n,) that the image is of a known class


@dataclass(frozen=True)
class ProbabilityCalibration:
    """The defaults are those found on CUB-200's base classes, for galleries that cannot be calibrated."""

    temperature: Annotated[float, Meta(ge=1e-6, le=1e9)] = 15.0  # of the ratios that name the class
    slope: Annotated[float, Meta(ge=1e-12, le=1e6)] = 0.04  # of the log-odds of "known" over the evidence for it
    offset: Annotated[float, Meta(ge=-1e9, le=1e9)] = -0.3
    crowding: Annotated[float, Meta(ge=0, le=1)] = 0.0  # times log C off the log-odds; 0 in models written before it

    def log_probabilities(self, log_ratios: Tensor, evidence: Tensor, unknown_prior: float = 0.5) -> Tensor:
        """(n, C) ratios and (n,) evidence for "known" -> (n, C + 1) float64: the classes, then "unknown"."""
        parameters = torch.tensor([self.temperature, self.slope, self.offset], dtype=torch.float64)
        return _log_probabilities(log_ratios.double(), evidence.double(), parameters, self.crowding, unknown_prior)

    def offset_among(self, classes: int) -> float:
        """Of the log-odds of "known" in a gallery of this many classes."""
        return self.offset - self.crowding * math.log(max(classes, 1))

    def probabilities(self, log_ratios: Tensor, evidence: Tensor, unknown_prior: float = 0.5) -> tuple[Tensor, Tensor]:
        """(n, C) ratios and (n,) evidence for "known" -> (n, C) probabilities of the classes and (n,) that of none."""
        both = self.log_probabilities(log_ratios, evidence, unknown_prior).exp()
        return both[:, :-1], both[:, -1]

    def of_nearest(
        self,
        log_ratios: Tensor,
        nearest: Tensor,
        evidence: Tensor,
        unknown_prior: float = 0.5,
        among: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(n, C) ratios, (n, k) the largest of them, largest first, and (n,) evidence for "known" -> (n, k)
        probabilities of these classes, and (n,) that of none. As `probabilities`, at the price of one pass over the
        ratios.

        among: of how many classes the C are the candidates; by default they are all.
        """
        largest = nearest[:, :1]  # taken off first: of large ratios, float32 would round a probability to above 1
        every = torch.logsumexp((log_ratios - largest).div_(self.temperature), 1, keepdim=True).double()
        offset = self.offset_among(log_ratios.shape[1] if among is None else among)
        odds = (self.slope * evidence[:, None].double() + offset) + _prior_odds(unknown_prior)
        names = (nearest - largest).double() / self.temperature - every
        return (F.logsigmoid(odds) + names).exp(), F.logsigmoid(-odds[:, 0]).exp()

    def unknown_at(self, evidence: float, classes: int, unknown_prior: float = 0.5) -> float:
        """Probability of "unknown" for an image with this evidence in a gallery of this many classes."""
        odds = self.slope * evidence + self.offset_among(classes) + _prior_odds(unknown_prior)
        return 1 / (1 + math.exp(min(odds, 700.0)))

    def threshold(self, classes: int, unknown_prior: float = 0.5) -> float:
        """The evidence at which "unknown" has the probability 1/2, in a gallery of this many classes."""
        return -(self.offset_among(classes) + _prior_odds(unknown_prior)) / self.slope


def fit_calibration(
    asked: Sequence[Asked], classes: int, usual: ProbabilityCalibration, unknown_prior: float = 0.5
) -> ProbabilityCalibration:
    """The calibration of the largest posterior; unknown images together weigh unknown_prior, whatever their number.

    The prior draws towards `usual`, the more the fewer classes the answers come from: PULL / classes^2 times the
    squared distance, for temperature and slope in logarithms.
    """
    begin = [math.log(usual.temperature), math.log(usual.slope), usual.offset]
    free = torch.tensor(begin, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        parameters = torch.cat([free[:2].exp(), free[2:]])
        stated = [
            _log_probabilities(one.ratios.double(), one.evidence.double(), parameters, CROWDING, unknown_prior)
            for one in asked
        ]
        away = (free - torch.tensor(begin, dtype=torch.float64)).square().sum()
        total = _loss(stated, [one.target for one in asked], unknown_prior) + PULL / classes**2 * away
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    temperature, slope = free.detach()[:2].exp().tolist()
    return ProbabilityCalibration(temperature, slope, float(free.detach()[2]), CROWDING)


def negative_log_likelihood(
    asked: Sequence[Asked], calibration: ProbabilityCalibration, unknown_prior: float = 0.5
) -> float:
    stated = [calibration.log_probabilities(one.ratios, one.evidence, unknown_prior) for one in asked]
    return float(_loss(stated, [one.target for one in asked], unknown_prior))


def calibration_error(
    asked: Sequence[tuple[Sequence[Asked], ProbabilityCalibration]], unknown_prior: float = 0.5, bins: int = 15
) -> float:
    """Expected calibration error of the likeliest answer, a class or "unknown", over equally wide bins of confidence.

    Every group of answers comes with the calibration it is judged under.
    """
    pairs = [(one, calibration) for group, calibration in asked for one in group]
    gaps = torch.zeros(bins, dtype=torch.float64)
    for (one, calibration), weights in zip(
        pairs, _weights([one.target for one, _ in pairs], unknown_prior), strict=True
    ):
        confidence, answer = calibration.log_probabilities(one.ratios, one.evidence, unknown_prior).exp().max(1)
        right = answer == _columns(one.target, one.ratios.shape[1])
        place = (confidence * bins).long().clamp_max(bins - 1)
        gaps.index_add_(0, place, weights * (confidence - right.double()))
    return float(gaps.abs().sum())


def _log_probabilities(
    ratios: Tensor, evidence: Tensor, parameters: Tensor, crowding: float, unknown_prior: float
) -> Tensor:
    temperature, slope, offset = parameters
    odds = slope * evidence + offset - crowding * math.log(ratios.shape[1]) + _prior_odds(unknown_prior)
    names = F.logsigmoid(odds)[:, None] + (ratios / temperature).log_softmax(1)
    return torch.cat([names, F.logsigmoid(-odds)[:, None]], 1)


def _prior_odds(unknown_prior: float) -> float:
    """Log-odds of "known" before the image is seen."""
    if not 0 < unknown_prior < 1:
        raise ValueError(f"the prior probability of unknown is between 0 and 1, not {unknown_prior}")
    return math.log((1 - unknown_prior) / unknown_prior)


def _loss(stated: Sequence[Tensor], targets: Sequence[Tensor], unknown_prior: float) -> Tensor:
    """Of (n, C + 1) log-probabilities of several galleries."""
    parts = []
    for found, target, weights in zip(stated, targets, _weights(targets, unknown_prior), strict=True):
        chosen = found.gather(1, _columns(target, found.shape[1] - 1)[:, None])[:, 0]
        parts.append(-(chosen * weights).sum())
    return torch.stack(parts).sum()


def _columns(target: Tensor, classes: int) -> Tensor:
    """(n,) columns of the right answers."""
    return torch.where(target < 0, classes, target)


def _weights(targets: Sequence[Tensor], unknown_prior: float) -> list[Tensor]:
    """(n,) float64 for every gallery, in all 1: galleries that are asked about known images share 1 - unknown_prior
    equally, those that are asked about unknown ones unknown_prior; one kind has all of it where there is no other.
    """
    unknown = [target < 0 for target in targets]
    strange = sum(bool(own.any()) for own in unknown)
    familiar = sum(not bool(own.all()) for own in unknown)
    share = (unknown_prior if familiar else 1.0) if strange else 0.0
    return [
        torch.where(
            own,
            share / max(strange, 1) / own.sum().clamp_min(1),
            (1 - share) / max(familiar, 1) / (~own).sum().clamp_min(1),
        ).double()
        for own in unknown
    ]
