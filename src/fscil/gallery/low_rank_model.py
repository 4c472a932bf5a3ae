"""The two-covariance model where W is the identity and B a diagonal plus a matrix of low rank.

The log-likelihood ratios are those of `TwoCovariance`, without decomposing a large matrix for every trial of constants.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fscil.gallery.two_covariance import student_ratios


@dataclass(frozen=True, eq=False)
class Inverse:
    """The inverse of a covariance, diag(diagonal) - factor factor', and the log-determinant of the covariance."""

    diagonal: Tensor  # (r,)
    factor: Tensor  # (r, c)
    log_determinant: float

    def quadratic(self, x: Tensor) -> Tensor:
        """(n, r) -> (n,) x' M x"""
        return x.square() @ self.diagonal - (x @ self.factor).square().sum(1)

    def apply(self, x: Tensor) -> Tensor:
        """(n, r) -> (n, r) M x"""
        return x * self.diagonal - (x @ self.factor) @ self.factor.T


class Ratios(NamedTuple):
    """Of images against classes."""

    ratios: Tensor  # (n, C)
    information: Tensor  # (C,) in the photos of each class

    def of_classes(self, start: int, end: int) -> "Ratios":
        return Ratios(self.ratios[:, start:end], self.information[start:end])

    def evidence(self, information_weight: float) -> Tensor:
        """(n,) that an image is of a known class."""
        nearest = self.ratios.max(1)
        return nearest.values + information_weight * self.information[nearest.indices]


@dataclass(frozen=True, eq=False)
class LowRankModel:
    """The model of `TwoCovariance.fit` where W is the identity: B = diag(diagonal) + factor factor'."""

    diagonal: Tensor  # (r,) float32
    factor: Tensor  # (r, c) float32
    rest: float  # psi of the directions in which nothing varies
    unused: int  # number of such directions

    def resolvent(self, k: float) -> Inverse:
        """(I + k B)^-1: for k = 1 the inverse covariance of an image of a class never seen."""
        diagonal = 1 / (1 + k * self.diagonal)
        scaled = self.factor * diagonal[:, None]
        inner = torch.linalg.cholesky(torch.eye(self.factor.shape[1]) + k * self.factor.T @ scaled)
        factor = torch.linalg.solve_triangular(inner, scaled.T * k**0.5, upper=False).T
        determinant = 2 * inner.diagonal().log().sum() - diagonal.log().sum()
        return Inverse(diagonal, factor, float(determinant) + self.unused * _log(1 + k * self.rest))

    def predictive(self, k: float, resolvent: Inverse) -> Inverse:
        """Inverse of the covariance of an image, given k independent photos of its class: I + (I - resolvent) / k."""
        diagonal = 1 + (1 - resolvent.diagonal) / k
        scaled = resolvent.factor / diagonal[:, None]
        inner = torch.linalg.cholesky(k * torch.eye(scaled.shape[1]) + resolvent.factor.T @ scaled)
        factor = torch.linalg.solve_triangular(inner, scaled.T, upper=False).T
        determinant = 2 * inner.diagonal().log().sum() - scaled.shape[1] * _log(k) + diagonal.log().sum()
        rest = self.unused * _log(1 + self.rest / (1 + k * self.rest))
        return Inverse(1 / diagonal, factor, float(determinant) + rest)

    def log_ratio(self, queries: Tensor, means: Tensor, counts: Tensor, degrees: float | None = None) -> Ratios:
        """(n, r) queries, (C, r) means, (C,) effective counts; degrees: of freedom of Student's t, None: a Gaussian"""
        apart = self.resolvent(1.0)
        lengths = apart.quadratic(queries)
        unseen = lengths + apart.log_determinant
        ratios, information = queries.new_empty(len(queries), len(means)), queries.new_empty(len(means))
        for k in torch.unique(counts).tolist():
            own = counts == k
            resolvent = self.resolvent(k)
            inverse = self.predictive(k, resolvent)
            centres = means[own] - resolvent.apply(means[own])
            weights = inverse.apply(centres)
            seen = inverse.quadratic(queries) + inverse.log_determinant
            ratios[:, own] = queries @ weights.T - (weights * centres).sum(1) / 2 + (unseen - seen)[:, None] / 2
            information[own] = (apart.log_determinant - inverse.log_determinant) / 2
        if degrees is not None:
            dim = queries.shape[1] + self.unused
            ratios = student_ratios(ratios, information, lengths[:, None], dim, degrees)
        return Ratios(ratios, information)


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())
