"""Decision rules: how an image is compared with a class, of which only a sum and a count are known.

A rule embeds every feature; a class is the sum of its photos' embeddings and their number. From these the rule makes
one row of numbers per class, and the scores of n images against C classes are one or two matrix products.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fscil.errors import StoreError
from fscil.gallery.two_covariance import TwoCovariance
from fscil.openset import DEFAULT_SCORE, SCORES, Evidence
from fscil.runtime.text import printable

Floats = NDArray[np.float64]

TYPICAL_COUNT = 3  # photos of a class, where one number stands for all


class DecisionRule(Protocol):
    """What a gallery needs of a rule."""

    name: str
    unknown_scores: Collection[str]  # names of those by which "unknown" may be decided
    default_score: str  # the one of them to use where none is asked for
    rounding: float  # by which a score may differ when a feature is computed again in another batch

    def embed(self, features: Tensor) -> Tensor:
        """(n, d) raw features -> (n, q) what a class sums up."""
        ...

    def row(self, total: Floats, count: int) -> Floats:
        """The (q,) sum of the embeddings of `count` photos -> the (r,) row of their class."""
        ...

    def rows(self, totals: Tensor, counts: Tensor) -> Tensor:
        """(C, q) float64 sums of (C,) photos each -> (C, r) float32, what `row` gives for each class."""
        ...

    def scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        """(n, d) raw features against the (C, r) rows of classes with (C,) photos -> (n, C), higher is nearer."""
        ...

    def own_scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        """As `scores`, each of the (n, d) features against one class alone: (n, r) rows, (n,) counts -> (n,)."""
        ...

    def unknown_score(self, name: str, scores: Tensor, counts: Tensor) -> Tensor:
        """(n, C) scores of classes with (C,) photos, or (n, C) -> (n,): low where an image may show none of them.

        name: one of `unknown_scores`.
        """
        ...

    def class_points(self, rows: Tensor, counts: Tensor) -> Tensor:
        """(C, r) rows of classes with (C,) photos -> (C, k) points, of which those of classes with a high score are
        near to the point of an image; roughly so, to find candidates.
        """
        ...

    def query_points(self, features: Tensor) -> Tensor:
        """(n, d) raw features -> (n, k) the points of images."""
        ...

    def fits(self, dim: int) -> bool:
        """Whether it is for features of this length."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All it is made of, for a file."""
        ...


class CosineRule:
    """The paper's: the cosine to the mean of the raw features."""

    name = "cosine"
    unknown_scores: Collection[str] = SCORES
    default_score = DEFAULT_SCORE
    rounding = 1e-5

    def embed(self, features: Tensor) -> Tensor:
        return features

    def row(self, total: Floats, count: int) -> Floats:
        """The unit vector of the mean."""
        length = np.sqrt(total @ total)
        unit: Floats = total / (length or 1.0)
        return unit

    def rows(self, totals: Tensor, counts: Tensor) -> Tensor:
        units = [self.row(total, 1).astype(np.float32) for total in totals.numpy()]
        return torch.from_numpy(np.stack(units)) if units else totals.float()

    def scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        return F.normalize(features.float().cpu(), dim=1) @ rows.T

    def own_scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        return (F.normalize(features.float().cpu(), dim=1) * rows).sum(1)

    def unknown_score(self, name: str, scores: Tensor, counts: Tensor) -> Tensor:
        return SCORES[name](Evidence(scores))

    def class_points(self, rows: Tensor, counts: Tensor) -> Tensor:
        return rows

    def query_points(self, features: Tensor) -> Tensor:
        return F.normalize(features.float().cpu(), dim=1)

    def fits(self, dim: int) -> bool:
        return True

    def state(self) -> dict[str, Tensor]:
        return {}


class TwoCovarianceRule:
    """The log-likelihood ratio of the two-covariance model. A row is the class's weights, then its offset.

    "Unknown" is decided by the ratio of the nearest class and by how much is known of it: of many classes with one
    photo, one is near to anything by chance. Quality measures in the calibration of speaker verification do the same
    for short recordings (Mandasari et al., 2013).
    """

    name = "two_covariance"
    unknown_scores: Collection[str] = ("log_ratio",)  # pooling the evidence of all classes did worse
    default_score = "log_ratio"
    rounding = 0.01

    def __init__(self, model: TwoCovariance) -> None:
        self.model = model

    def embed(self, features: Tensor) -> Tensor:
        return self.model.transform(features.float().cpu())

    def row(self, total: Floats, count: int) -> Floats:
        row: Floats = self.rows(torch.from_numpy(total)[None], torch.tensor([count]))[0].double().numpy()
        return row

    def rows(self, totals: Tensor, counts: Tensor) -> Tensor:
        made = self.model.classes(totals / counts[:, None], counts)
        return torch.cat([made.weights, made.offsets[:, None]], 1)

    def scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        mapped = self.embed(features)
        distinct, group = _groups(counts)
        linear = torch.addmm(rows[:, -1], mapped, rows[:, :-1].T)
        ratios = linear.sub_((mapped.square() @ self.model.excess_precision(distinct).T)[:, group])
        return self.model.with_tails(ratios, self.model.information(distinct)[group], mapped)

    def own_scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        mapped = self.embed(features)
        distinct, group = _groups(counts)
        quadratic = (mapped.square() @ self.model.excess_precision(distinct).T).gather(1, group[:, None])[:, 0]
        ratios = (mapped * rows[:, :-1]).sum(1) + rows[:, -1] - quadratic
        return self.model.with_tails(ratios, self.model.information(distinct)[group], mapped)

    def unknown_score(self, name: str, scores: Tensor, counts: Tensor) -> Tensor:
        nearest = scores.max(1, keepdim=True)
        photos = counts.expand(scores.shape).gather(1, nearest.indices)[:, 0]
        return nearest.values[:, 0] + self.offsets_of_known(photos)

    def offsets_of_known(self, counts: Tensor) -> Tensor:
        """(k,) counts of nearest classes -> (k,) float32, to be added to their ratios before "unknown" is decided."""
        distinct, group = _groups(counts)
        return (self.model.information_weight * self.model.information(distinct)).float()[group]

    def class_points(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What the class is expected to be. A score falls with the squared distance to it, weighted by precisions that
        depend on the count; to find candidates, those of TYPICAL_COUNT photos do for all.
        """
        distinct, group = _groups(counts)
        return rows[:, :-1] / self._precision(distinct)[group] * self._scale()

    def query_points(self, features: Tensor) -> Tensor:
        return self.embed(features) * self._scale()

    def _precision(self, counts: Tensor) -> Tensor:
        """(k,) counts -> (k, q) of an image, given so many photos of its class."""
        return 2 * self.model.excess_precision(counts) + (1 / (1 + self.model.psi)).float()

    def _scale(self) -> Tensor:
        return self._precision(torch.tensor([TYPICAL_COUNT])).sqrt()

    def fits(self, dim: int) -> bool:
        return len(self.model.centre) == dim

    def state(self) -> dict[str, Tensor]:
        return self.model.state()


def _groups(counts: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) counts -> the distinct ones, and (C,) which of them each is. Without sorting: there may be many classes."""
    present = torch.bincount(counts) > 0
    return present.nonzero()[:, 0], (present.cumsum(0) - 1)[counts]


COSINE = CosineRule()


def rule_from_state(name: str, state: Mapping[str, Tensor]) -> DecisionRule:
    """The rule that had this name and state. Raises a StoreError if there is none that gives finite scores."""
    if name == CosineRule.name:
        return COSINE
    if name == TwoCovarianceRule.name:
        return TwoCovarianceRule(TwoCovariance.from_state(state))
    raise _unknown_rule(name)


def unknown_scores_of(name: str) -> Collection[str]:
    """Those of the rule of this name."""
    for rule in (CosineRule, TwoCovarianceRule):
        if rule.name == name:
            return rule.unknown_scores
    raise _unknown_rule(name)


def _unknown_rule(name: str) -> StoreError:
    return StoreError(f'The decision rule "{printable(name)}" is of a newer fscil. Upgrade fscil to read this model.')
