"""LUCIR (Hou et al., CVPR 2019; "NCM" in the paper's tables): one classifier of cosines for old and new classes alike.

Old and new classes are told apart by angles alone, so that neither wins by size. Features must keep the direction they
had before the session (less-forget), under old class vectors that stay put; exemplars must be nearer to their own class
than to the new ones by a margin (ranking); new class vectors begin as the mean of their features (imprinting).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.gallery import class_means
from fscil.methods.base import Memory
from fscil.methods.toolkit.distillation import frozen
from fscil.methods.toolkit.exemplars import NOTHING, from_tensors, herded, joined, to_tensors
from fscil.methods.toolkit.growing_network import Learner, check_numbers, mean_length
from fscil.methods.toolkit.train_on_images import descend
from fscil.models import CosineHead
from fscil.training.base_training import PLAIN_SCALE, plain_recipe
from fscil.training.loop import Trainer

LESS_FORGET = 5.0  # weight of that loss for as many new classes as old ones
HARDEST, MARGIN = 2, 0.5  # of the ranking: how many new classes, and by how much to beat them


class Lucir:
    """Keeps the exemplars and the scale."""

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        self.config, self.trainer = config, trainer
        self.network = Learner(self.base_recipe(config), trainer)
        self.exemplars = NOTHING
        self.scale = nn.Parameter(torch.tensor(PLAIN_SCALE, device=trainer.device))

    @staticmethod
    def base_recipe(config: Config) -> Config:
        return plain_recipe(config)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.fit_base(base)
        self.exemplars = joined(self._chosen(base))
        self.scale.data.fill_(PLAIN_SCALE)

    def learn(self, new: Images) -> None:
        backbone, old = self.network.backbone, self.network.head.weight.detach()
        first, count = len(old), len(new.counts)
        check_numbers(new, first)
        before = frozen(backbone)
        added = nn.Parameter(self._imprinted(new, first))
        weight = less_forget_weight(first, count)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            features, taught = backbone(views), before(views)
            cosines = F.linear(F.normalize(features), F.normalize(torch.cat([old, added])))
            less_forget = (1 - F.cosine_similarity(features, taught)).mean()
            classified = F.cross_entropy(self.scale * cosines, labels)
            return classified + weight * less_forget + margin_ranking(cosines, labels, first)

        moving = [*backbone.parameters(), added, self.scale]
        descend(moving, joined(self.exemplars, new), loss, self.config, self.trainer, "lucir", seed=first)
        self.network.head = CosineHead(old.shape[1], first + count).to(old.device)
        self.network.head.weight.data.copy_(torch.cat([old, added.detach()]))
        self.network.settle()
        self.exemplars = joined(self.exemplars, self._chosen(new))

    def _imprinted(self, new: Images, first: int) -> Tensor:
        """(new classes, d): the direction of their mean normalised feature, the length of the old class vectors."""
        features, labels = F.normalize(self.network.features(new)), torch.from_numpy(new.labels - first)
        directions = F.normalize(class_means(features, labels, len(new.counts)))
        old = self.network.head.weight.detach()
        return directions.to(old.device) * mean_length(old)

    def _chosen(self, images: Images) -> Images:
        return herded(images, self.network.features(images), self.config.incremental.exemplars)

    def scores(self, images: Images) -> Tensor:
        return self.network.scores(images)

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        return {}

    def memory(self) -> Memory:
        return Memory(images=len(self.exemplars))

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*, exemplars.*, scale"""
        scale = self.scale.detach().cpu().clone()
        return {**self.network.state(), **to_tensors(self.exemplars), "scale": scale}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
        self.exemplars = from_tensors(state)
        self.scale.data.copy_(state["scale"])


def less_forget_weight(old: int, new: int) -> float:
    """The more there is to forget, the heavier."""
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
