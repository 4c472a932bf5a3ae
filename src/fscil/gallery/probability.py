"""From log-likelihood ratios to probabilities that hold, and how far off they are.

The ratios of the two-covariance model add up the evidence of all directions as if they were independent, and are too
sure. Naming and rejecting are wrong by different factors, so each has its own: names are a softmax with a temperature
(Guo et al., 2017), the odds of "known" an affine function of the largest ratio (Brümmer and du Preez, 2006).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Asked: TypeAlias = tuple[Tensor, Tensor]  # (n, C) log-likelihood ratios; (n,) the true classes, -1 where unknown


PULL = 0.1  # of the defaults, on a calibration from few classes


@dataclass(frozen=True)
class ProbabilityCalibration:
    """The defaults are those found on CUB-200's base classes, for galleries that cannot be calibrated."""

    temperature: float = 15.0  # of the ratios that name the class
    slope: float = 0.04  # of the log-odds of "known" over the largest ratio
    offset: float = -0.3

    def log_probabilities(self, log_ratios: Tensor, unknown_prior: float = 0.5) -> Tensor:
        """(n, C) ratios -> (n, C + 1) float64: the classes, then "unknown"."""
        parameters = torch.tensor([self.temperature, self.slope, self.offset], dtype=torch.float64)
        return _log_probabilities(log_ratios.double(), parameters, unknown_prior)

    def probabilities(self, log_ratios: Tensor, unknown_prior: float = 0.5) -> tuple[Tensor, Tensor]:
        """(n, C) ratios -> (n, C) probabilities of the classes and (n,) that of none of them."""
        both = self.log_probabilities(log_ratios, unknown_prior).exp()
        return both[:, :-1], both[:, -1]

    def of_nearest(self, log_ratios: Tensor, nearest: Tensor, unknown_prior: float = 0.5) -> tuple[Tensor, Tensor]:
        """(n, C) ratios and (n, k) the largest of them, largest first -> (n, k) probabilities of these classes, and
        (n,) that of none. As `probabilities`, at the price of one pass over the ratios.
        """
        every = torch.logsumexp(log_ratios / self.temperature, 1, keepdim=True).double()
        odds = (self.slope * nearest[:, :1].double() + self.offset) + _prior_odds(unknown_prior)
        names = nearest.double() / self.temperature - every
        return (F.logsigmoid(odds) + names).exp(), F.logsigmoid(-odds[:, 0]).exp()

    def threshold(self, unknown_prior: float = 0.5) -> float:
        """The largest ratio at which "unknown" has the probability 1/2."""
        return -(self.offset + _prior_odds(unknown_prior)) / self.slope


def fit_calibration(asked: Sequence[Asked], classes: int, unknown_prior: float = 0.5) -> ProbabilityCalibration:
    """The calibration of the largest posterior; unknown images together weigh unknown_prior, whatever their number.

    The prior draws towards the defaults, the more the fewer classes the answers come from: PULL / classes times the
    squared distance, for temperature and slope in logarithms.
    """
    first = ProbabilityCalibration()
    begin = [math.log(first.temperature), math.log(first.slope), first.offset]
    free = torch.tensor(begin, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        parameters = torch.cat([free[:2].exp(), free[2:]])
        parts = [_loss(_log_probabilities(ratios.double(), parameters, unknown_prior), target, unknown_prior)
                 for ratios, target in asked]  # fmt: skip
        away = (free - torch.tensor(begin, dtype=torch.float64)).square().sum()
        total = torch.stack(parts).mean() + PULL / classes * away
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    temperature, slope = free.detach()[:2].exp().tolist()
    return ProbabilityCalibration(temperature, slope, float(free.detach()[2]))


def negative_log_likelihood(
    asked: Sequence[Asked], calibration: ProbabilityCalibration, unknown_prior: float = 0.5
) -> float:
    parts = [_loss(calibration.log_probabilities(ratios, unknown_prior), target, unknown_prior)
             for ratios, target in asked]  # fmt: skip
    return float(torch.stack(parts).mean())


def calibration_error(
    asked: Sequence[tuple[Sequence[Asked], ProbabilityCalibration]], unknown_prior: float = 0.5, bins: int = 15
) -> float:
    """Expected calibration error of the likeliest answer, a class or "unknown", over equally wide bins of confidence.

    Every group of answers comes with the calibration it is judged under.
    """
    gaps = torch.zeros(bins, dtype=torch.float64)
    total = 0
    for group, calibration in asked:
        for ratios, target in group:
            confidence, answer = calibration.log_probabilities(ratios, unknown_prior).exp().max(1)
            right = answer == _answers(target, ratios.shape[1])
            place = (confidence * bins).long().clamp_max(bins - 1)
            gaps.index_add_(0, place, _weights(target, unknown_prior) * (confidence - right.double()))
            total += 1
    return float(gaps.abs().sum()) / total


def _log_probabilities(ratios: Tensor, parameters: Tensor, unknown_prior: float) -> Tensor:
    temperature, slope, offset = parameters
    odds = slope * ratios.amax(1) + offset + _prior_odds(unknown_prior)
    names = F.logsigmoid(odds)[:, None] + (ratios / temperature).log_softmax(1)
    return torch.cat([names, F.logsigmoid(-odds)[:, None]], 1)


def _prior_odds(unknown_prior: float) -> float:
    """Log-odds of "known" before the image is seen."""
    if not 0 < unknown_prior < 1:
        raise ValueError(f"the prior probability of unknown is between 0 and 1, not {unknown_prior}")
    return math.log((1 - unknown_prior) / unknown_prior)


def _loss(log_probabilities: Tensor, target: Tensor, unknown_prior: float) -> Tensor:
    chosen = log_probabilities.gather(1, _answers(target, log_probabilities.shape[1] - 1)[:, None])[:, 0]
    return -(chosen * _weights(target, unknown_prior)).sum()


def _answers(target: Tensor, classes: int) -> Tensor:
    """(n,) columns of the right answers."""
    return torch.where(target < 0, classes, target)


def _weights(target: Tensor, unknown_prior: float) -> Tensor:
    """(n,) float64 that sum to 1."""
    unknown = target < 0
    share = (unknown_prior if (~unknown).any() else 1.0) if unknown.any() else 0.0
    each = torch.where(unknown, share / unknown.sum().clamp_min(1), (1 - share) / (~unknown).sum().clamp_min(1))
    return each.double()
