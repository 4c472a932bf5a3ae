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
from fscil.methods.toolkit.distillation import frozen
from fscil.methods.toolkit.growing_network import check_numbers, mean_length
from fscil.methods.toolkit.rehearsal import RehearsalMethod
from fscil.training.base_training import PLAIN_SCALE, TrainedNetwork
from fscil.training.context import Context

LESS_FORGET = 5.0  # weight of that loss for as many new classes as old ones
HARDEST, MARGIN = 2, 0.5  # of the ranking: how many new classes, and by how much to beat them


class Lucir(RehearsalMethod):
    """Keeps the exemplars and the scale."""

    title = "NCM"
    table_order = 4

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.scale = nn.Parameter(torch.tensor(PLAIN_SCALE, device=context.device))

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
        self.train(self.with_exemplars(new), loss, seed=first, parameters=moving)
        self.network.set_class_vectors(torch.cat([old, added.detach()]))
        self.keep_exemplars(new)

    def _imprinted(self, new: Images, first: int) -> Tensor:
        """(new classes, d): the direction of their mean normalised feature, the length of the old class vectors."""
        features, labels = F.normalize(self.network.features(new)), torch.from_numpy(new.labels - first)
        directions = F.normalize(class_means(features, labels, len(new.counts)))
        old = self.network.head.weight.detach()
        return directions.to(old.device) * mean_length(old)

    def own_state(self) -> dict[str, Tensor]:
        """exemplars.*, scale"""
        return {**super().own_state(), "scale": self.scale.detach().cpu().clone()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
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
