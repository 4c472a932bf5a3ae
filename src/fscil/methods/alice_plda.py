"""The two-covariance rule (probabilistic LDA) on ALICE's frozen features, instead of the nearest mean.

How far apart photos of one class are, and how far apart classes, is estimated from the base classes (see
fscil.gallery.two_covariance). A class is the sum and the number of its features, so that a mean of few images counts
for less than one of many. The network was fitted to the base images and has them closer together than other images of
their classes; therefore both covariances come from random training views of them, and so do the constants.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError
from fscil.features import Encoder
from fscil.gallery.choosing import choose
from fscil.gallery.two_covariance import TwoCovariance, class_sums
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.models.state import of_prefix
from fscil.training.base_training import plain_recipe
from fscil.training.build import views_of

BATCH = 256  # views that pass the network at once


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
        features, labels = self._features_of_views(base), torch.from_numpy(base.labels)
        constants = choose(features, labels, tuple(shots)).constants
        self.model = TwoCovariance.fit(
            features,
            labels,
            constants.within_shrinkage,
            constants.between_shrinkage,
            constants.rescale,
            constants.within_scale,
            constants.correlation,
        )
        self.sums, self.counts = self.sums[:0], self.counts[:0]
        self._add(base)

    @torch.inference_mode()
    def _features_of_views(self, images: Images) -> Tensor:
        """(n, d) of one random training view of each image."""
        recipe = self.base_recipe(self.config)
        views = views_of(replace(recipe, views=replace(recipe.views, count=1)))
        encoder, found = Encoder(self.backbone, self.context.device), []
        generator = torch.Generator().manual_seed(self.config.train.seed)
        for places in np.split(np.arange(len(images)), range(BATCH, len(images), BATCH)):
            pixels, sizes = map(torch.from_numpy, images.batch(places))
            found.append(encoder(views(pixels.to(self.context.device), sizes, generator)[0]))
        return torch.cat(found)

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
