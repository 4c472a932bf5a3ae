"""LUCIR (Hou et al., CVPR 2019; "NCM" in the paper's tables): one cosine classifier for old and new classes alike.

Classes are compared by angles alone, so that new class vectors do not win by their length. Features must keep the
direction they had before the session (less-forget loss), and the old class vectors are frozen; exemplars must be nearer
to their own class than to the new ones by a margin (margin ranking loss); new class vectors start from the mean of
their features (imprinting). For that the last ReLU is left out: features must have both signs, or their means would be
near every image.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.toolkit.distillation import frozen
from fscil.methods.toolkit.rehearsal import RehearsalMethod
from fscil.models import backbone_options
from fscil.training.base_training import PLAIN_SCALE

LESS_FORGET = 5.0  # weight of that loss where there are as many new classes as old ones
HARDEST, MARGIN = 2, 0.5  # of the ranking loss: how many new classes it compares with, and by which margin


class Lucir(RehearsalMethod):
    """Keeps the exemplars, and the scale of the cosines, which is trained too."""

    title = "NCM"
    table_order = 40
    session_lr = 0.01
    session_steps = 30
    scale: nn.Parameter

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """Without the last ReLU, where the backbone can do without it."""
        plain = super().base_recipe(config)
        if "last_relu" not in backbone_options(plain.model.backbone):
            return plain
        return replace(plain, model=replace(plain.model, last_relu=False))

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        super().fit_base(base, shots)
        self.scale = nn.Parameter(torch.tensor(PLAIN_SCALE, device=self.context.device))

    def learn(self, new: Images) -> None:
        backbone, old = self.network.backbone, self.network.head.weight.detach()
        first, count = len(old), len(new.counts)
        before = frozen(backbone)
        added = nn.Parameter(self.network.imprinted(new, self.base))
        weight = less_forget_weight(first, count)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            features, old_features = backbone(views), before(views)
            cosines = F.linear(F.normalize(features), F.normalize(torch.cat([old, added])))
            less_forget = (1 - F.cosine_similarity(features, old_features)).mean()
            classified = F.cross_entropy(self.scale * cosines, labels)
            return classified + weight * less_forget + margin_ranking(cosines, labels, first)

        self.train(self.with_exemplars(new), loss, seed=first, heads=[added, self.scale])
        self.network.set_class_vectors(torch.cat([old, added.detach()]))
        self.keep_exemplars(new)

    def own_state(self) -> dict[str, Tensor]:
        """base.*, exemplars.*, scale"""
        return {**super().own_state(), "scale": self.scale.detach().cpu().clone()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.scale = nn.Parameter(state["scale"].clone().to(self.context.device))


def less_forget_weight(old: int, new: int) -> float:
    """It grows with the number of old classes per new class."""
    return LESS_FORGET * math.sqrt(old / new)


def margin_ranking(cosines: Tensor, labels: Tensor, first: int) -> Tensor:
    """Mean over the images of old classes, of (n, classes) cosines; new classes are numbered from first."""
    rehearsed = labels < first
    if not rehearsed.any():
        return cosines.new_zeros(())
    cosines, labels = cosines[rehearsed], labels[rehearsed]
    own = cosines.gather(1, labels[:, None])
    hardest = cosines[:, first:].topk(min(HARDEST, cosines.shape[1] - first)).values
    return F.relu(MARGIN - own + hardest).sum(1).mean()
