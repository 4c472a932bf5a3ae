"""Decision rules: how an image is compared with a class, of which only a sum and a count are known.

A rule embeds every feature; a class is the sum of its photos' embeddings and their number. From these the rule makes
one row of numbers per class, and the scores of n images against C classes are one or two matrix products.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fscil.errors import StoreError
from fscil.gallery.two_covariance import TwoCovariance

Floats = NDArray[np.float64]


class DecisionRule(Protocol):
    """What a gallery needs of a rule."""

    name: str

    def embed(self, features: Tensor) -> Tensor:
        """(n, d) raw features -> (n, q) what a class sums up."""
        ...

    def row(self, total: Floats, count: int) -> Floats:
        """The (q,) sum of the embeddings of `count` photos -> the (r,) row of their class."""
        ...

    def scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        """(n, d) raw features against the (C, r) rows of classes with (C,) photos -> (n, C), higher is nearer."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All it is made of, for a file."""
        ...


class CosineRule:
    """The paper's: the cosine to the mean of the raw features."""

    name = "cosine"

    def embed(self, features: Tensor) -> Tensor:
        return features

    def row(self, total: Floats, count: int) -> Floats:
        """The unit vector of the mean."""
        length = np.sqrt(total @ total)
        unit: Floats = total / (length or 1.0)
        return unit

    def scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        return F.normalize(features.float().cpu(), dim=1) @ rows.T

    def state(self) -> dict[str, Tensor]:
        return {}


class TwoCovarianceRule:
    """The log-likelihood ratio of the two-covariance model. A row is the class's weights, then its offset."""

    name = "two_covariance"

    def __init__(self, model: TwoCovariance) -> None:
        self.model = model

    def embed(self, features: Tensor) -> Tensor:
        return self.model.transform(features.float().cpu())

    def row(self, total: Floats, count: int) -> Floats:
        made = self.model.classes(torch.from_numpy(total / count)[None], torch.tensor([count]))
        return np.append(made.weights[0].double().numpy(), float(made.offsets[0]))

    def scores(self, features: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        mapped = self.embed(features)
        distinct, group = torch.unique(counts, return_inverse=True)
        linear = torch.addmm(rows[:, -1], mapped, rows[:, :-1].T)
        return linear.sub_((mapped.square() @ self.model.excess_precision(distinct).T)[:, group])

    def state(self) -> dict[str, Tensor]:
        return self.model.state()


COSINE = CosineRule()


def rule_from_state(name: str, state: Mapping[str, Tensor]) -> DecisionRule:
    """The rule that had this name and state."""
    if name == CosineRule.name:
        return COSINE
    if name == TwoCovarianceRule.name:
        return TwoCovarianceRule(TwoCovariance.from_state(state))
    raise StoreError(f'The decision rule "{name}" is of a newer fscil. Upgrade fscil to read this model.')
