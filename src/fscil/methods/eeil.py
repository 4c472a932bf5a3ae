"""EEIL (Castro et al., ECCV 2018): a head for each session, each old one distilled, and then a balanced fine-tuning.

Features and classifier are trained together, on the new images and exemplars of the old classes; each old head is
distilled from the network before the session. A second training, at a lower rate, sees equally many images of each
class; in it the new head is distilled too, from the network after the first.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.rehearsal import RehearsalMethod

BALANCED_RATE = 0.1  # the rate of balanced fine-tuning, relative to that of the first training


class EEIL(RehearsalMethod):
    """Keeps the exemplars. The heads are consecutive outputs of one layer."""

    title = "EEIL"
    table_order = 30
    session_lr = 0.03
    session_steps = 30
    borders: Sequence[int] = (0,)  # head i is the outputs from borders[i] up to borders[i + 1]

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        super().fit_base(base, shots)
        self.borders = [0, self.network.head.out_features]

    def learn(self, new: Images) -> None:
        before = self.network.frozen_copy()
        first = self.grow(new)
        self.borders = [*self.borders, self.network.head.out_features]

        def cross_distilled(views: Tensor, labels: Tensor) -> Tensor:
            return self._loss(self.network(views), labels, before(views))

        images = self.with_exemplars(new)
        self.train(images, cross_distilled, seed=first)

        trained = self.network.frozen_copy()

        def balanced(views: Tensor, labels: Tensor) -> Tensor:
            return self._loss(self.network(views), labels, torch.cat([before(views), trained(views)[:, first:]], 1))

        few = self.herded(images, min(images.counts.values()))
        self.train(few, balanced, seed=first, lr=BALANCED_RATE * self.lr)
        self.keep_exemplars(new)

    def _loss(self, scores: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
        """Cross-entropy of (n, classes) scores, and distillation of each head that the (n, k) teacher scores cover."""
        heads = [(start, stop) for start, stop in pairwise(self.borders) if stop <= teacher.shape[1]]
        terms = [distillation(scores[:, start:stop], teacher[:, start:stop]) for start, stop in heads]
        return F.cross_entropy(scores, labels) + torch.stack(terms).sum()

    def own_state(self) -> dict[str, Tensor]:
        """base.*, exemplars.*, borders"""
        return {**super().own_state(), "borders": torch.tensor(self.borders)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.borders = state["borders"].tolist()
