"""EEIL (Castro et al., ECCV 2018): a head for each session, each old one distilled, and then a balanced fine-tuning.

Features and classifier learn together, from the new images and exemplars of the old classes; every old head must go on
saying what it said before. A second, gentler training sees equally many images of each class; in it the new head is
held to what it has just learned.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.exemplars import NOTHING, from_tensors, herded, joined, to_tensors
from fscil.methods.toolkit.growing_network import Learner
from fscil.methods.toolkit.train_on_images import descend
from fscil.training.base_training import plain_recipe
from fscil.training.loop import Trainer

GENTLER = 0.1  # the rate of balanced fine-tuning, as a share of the rate before it


class EEIL:
    """Keeps the exemplars. The heads are neighbouring outputs of one layer."""

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        self.config, self.trainer = config, trainer
        self.network = Learner(self.base_recipe(config), trainer)
        self.exemplars = NOTHING
        self.borders = [0]  # head i is the outputs from borders[i] up to borders[i + 1]

    @staticmethod
    def base_recipe(config: Config) -> Config:
        return plain_recipe(config)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.fit_base(base)
        self.exemplars = joined(self._chosen(base, self.config.incremental.exemplars))
        self.borders = [0, self.network.head.out_features]

    def learn(self, new: Images) -> None:
        before = self.network.frozen()
        first = self.network.grow(new)
        self.borders = [*self.borders, self.network.head.out_features]

        def cross_distilled(views: Tensor, labels: Tensor) -> Tensor:
            return self._loss(self.network(views), labels, before(views))

        images = joined(self.exemplars, new)
        descend(self.network.parameters(), images, cross_distilled, self.config, self.trainer, "eeil", seed=first)
        self.network.settle()

        trained = self.network.frozen()

        def balanced(views: Tensor, labels: Tensor) -> Tensor:
            return self._loss(self.network(views), labels, torch.cat([before(views), trained(views)[:, first:]], 1))

        few = self._chosen(images, min(images.counts.values()))
        rate = GENTLER * self.config.incremental.lr
        descend(self.network.parameters(), few, balanced, self.config, self.trainer, "eeil", seed=first, lr=rate)
        self.network.settle()
        self.exemplars = joined(self.exemplars, self._chosen(new, self.config.incremental.exemplars))

    def _loss(self, scores: Tensor, labels: Tensor, taught: Tensor) -> Tensor:
        """Cross-entropy over all (n, classes) scores, and a distillation term per head that taught (n, k) covers."""
        heads = [(start, stop) for start, stop in pairwise(self.borders) if stop <= taught.shape[1]]
        terms = [distillation(scores[:, start:stop], taught[:, start:stop]) for start, stop in heads]
        return F.cross_entropy(scores, labels) + torch.stack(terms).sum()

    def _chosen(self, images: Images, count: int) -> Images:
        return herded(images, self.network.features(images), count)

    def scores(self, images: Images) -> Tensor:
        return self.network.scores(images)

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        return {}

    def memory(self) -> Memory:
        return Memory(images=len(self.exemplars))

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*, exemplars.*, borders"""
        return {**self.network.state(), **to_tensors(self.exemplars), "borders": torch.tensor(self.borders)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
        self.exemplars, self.borders = from_tensors(state), state["borders"].tolist()
