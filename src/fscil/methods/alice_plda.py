"""The two-covariance rule (probabilistic LDA) on ALICE's frozen features, instead of the nearest mean.

How far apart images of one class are, and how far apart classes, is estimated from the base images (see
fscil.gallery.two_covariance). A class is the sum and the number of its features, so that a mean of few images counts
for less than one of many.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError
from fscil.gallery import TwoCovarianceRule
from fscil.gallery.choosing import MANY, choose, start
from fscil.gallery.two_covariance import Constants, TwoCovariance, class_sums
from fscil.methods.base import Memory
from fscil.methods.closer import Closer
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.models.state import of_prefix
from fscil.training.base_training import plain_recipe

# Of a network that was trained on the base classes. None of these is new to it, so that cross-validation over them
# would favour them; these were chosen with a network that had not seen the pseudo-novel ones (results/readout.md).
TRAINED = Constants(within_shrinkage=0.7, between_shrinkage=0.3, rescale=True, within_scale=0.7)


class AlicePlda(FrozenFeatureMethod):
    """Keeps the model, and per class the sum of its mapped features and their number."""

    title = "ALICE + two-covariance rule"
    table_order = 105
    model: TwoCovariance
    sums = torch.empty(0)  # (classes, q)
    counts = torch.empty(0, dtype=torch.int64)  # (classes,)

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """ALICE's: the recipe itself."""
        return config

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        classes = len(base.counts)
        if classes < 2 or len(base) <= classes:
            raise ProtocolError(f"{self.title} needs two base classes, and one of them with two images.")
        features, labels = self.features(base), torch.from_numpy(base.labels)
        self.model = TwoCovariance.fit(features, labels, **asdict(self._constants(features, labels, shots)))
        self.sums, self.counts = self.sums[:0], self.counts[:0]
        self._add(base)

    def _constants(self, features: Tensor, labels: Tensor, shots: Sequence[int]) -> Constants:
        """By cross-validation where the network has not been trained on these classes, which can then be new to it."""
        if not self.base_recipe(self.config).train.epochs:
            return choose(features, labels, tuple(shots)).constants
        classes = len(torch.unique(labels))
        return TRAINED if classes >= MANY else replace(start(classes), information_weight=0.0)

    def learn(self, new: Images) -> None:
        check_numbers(new, len(self.counts))
        self._add(new)

    def _add(self, images: Images) -> None:
        labels, classes = torch.from_numpy(images.labels - len(self.counts)), len(images.counts)
        sums = class_sums(self.model.transform(self.features(images)), labels, classes)
        self.sums = torch.cat([self.sums, sums]) if len(self.sums) else sums
        self.counts = torch.cat([self.counts, torch.bincount(labels, minlength=classes)])

    def scores(self, images: Images) -> Tensor:
        """Log-likelihood ratios of each class against a class never seen."""
        mapped = self.model.transform(self.features(images))
        return self.model.log_ratio(mapped, self.sums / self.counts[:, None], self.counts)

    def unknown_scores(self, scores: Tensor) -> dict[str, Tensor]:
        rule = TwoCovarianceRule(self.model)
        return {rule.default_score: rule.unknown_score(rule.default_score, scores, self.counts)}

    def memory(self) -> Memory:
        return Memory(floats=sum(value.numel() for value in self.own_state().values() if value.is_floating_point()))

    def own_state(self) -> dict[str, Tensor]:
        """model.*, sums, counts"""
        model = {f"model.{name}": value for name, value in self.model.state().items()}
        return {**model, "sums": self.sums, "counts": self.counts}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.model = TwoCovariance.from_state(of_prefix("model", state))
        self.sums, self.counts = state["sums"], state["counts"]


class NcmPlda(AlicePlda):
    """The same on the network of plain cross-entropy training."""

    title = "cross-entropy + two-covariance rule"
    table_order = 87

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        return plain_recipe(config)


class CloserPlda(AlicePlda):
    """The same on CLOSER's network."""

    title = "CLOSER + two-covariance rule"
    table_order = 151

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        return Closer.base_recipe(config)
