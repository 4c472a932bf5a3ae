"""SAVC (Song et al., CVPR 2023): supervised contrast with a momentum encoder, over real and fantasy classes.

An image turned upside down is one of another, fantasy class. Base training classifies real and fantasy classes, and
pulls large and small crops of an image towards crops of its class that a slowly following encoder has seen, kept in a
queue, and away from those of other classes. At test the cosines of an image with class means are averaged over the
transformations, each with means of its own.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.augment import Views
from fscil.config import Config
from fscil.data.images import Images
from fscil.features import FeatureCache
from fscil.gallery import cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.contrast import cosines_of, precise
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.models import Backbone, CosineHead
from fscil.training.base_network import OBJECTIVES, BaseNetwork, Objective
from fscil.training.base_training import PLAIN_SCALE, TrainedNetwork, plain_recipe
from fscil.training.batches import Batch
from fscil.training.build import evaluation_crops_of, preprocess_of, views_of
from fscil.training.context import Context

SCALE = PLAIN_SCALE  # of the cosines of the classifier, as in the paper
FANTASIES = 2  # transformations of an image: as it is, and turned by 180 degrees
SMALL_CROPS = 4
DIMENSION = 128  # of the vectors that are contrasted
QUEUE = 8192
TEMPERATURE = 0.07
MOMENTUM = 0.995
LARGE_WEIGHT, SMALL_WEIGHT = 0.2, 0.8  # of the contrast of large and of small crops
# Share of the image that large and small crops have, and the size of small ones, for pictures of fewer than 64 pixels
# (the paper's for CIFAR100) and for larger ones (for CUB200).
FEW_PIXELS = 64
OF_FEW, OF_MANY = ((0.9, 1.0), (0.2, 0.7), 18 / 32), ((0.2, 1.0), (0.05, 0.14), 96 / 224)
UNKNOWN = -1  # class of a place in the queue that is still empty
NONE = -1e4  # a similarity whose exponential is 0


def fantasies(images: Tensor) -> Tensor:
    """(n, 3, h, w) -> (2 n, 3, h, w): the images, then the same turned by 180 degrees."""
    return torch.cat([images, images.flip(-2, -1)]).contiguous(memory_format=torch.channels_last)


def queue_contrast(queries: Tensor, keys: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor) -> Tensor:
    """The mean of -log exp(q p / T) / (exp(q p / T) + sum of exp(q n / T) over negatives n), over positives p, then q.

    queries, keys: (n, d) unit vectors, of the same images. Positives are the own key and what the queue (m, d) has of
    the class, negatives what it has of others.
    """
    own = (precise(queries) * precise(keys)).sum(1, keepdim=True) / TEMPERATURE
    queued = cosines_of(queries, queue) / TEMPERATURE
    same = labels[:, None] == queue_labels
    other = ~same & (queue_labels != UNKNOWN)
    negative = queued.masked_fill(~other, NONE).logsumexp(1, keepdim=True)
    positives = torch.cat([torch.ones_like(own), same], 1)
    each = F.softplus(negative - torch.cat([own, queued], 1)) * positives
    return (each.sum(1) / positives.sum(1)).mean()


@OBJECTIVES.register("savc")
class SavcObjective(Objective):
    """The momentum encoder, the queue, and the vectors of the fantasy classes."""

    divisible = True
    queue: Tensor
    queue_labels: Tensor
    place: Tensor
    steps: Tensor

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        super().__init__(recipe, backbone, classes)
        width = backbone.feature_dim
        self.fantasy_head = CosineHead(width, (FANTASIES - 1) * classes)
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIMENSION))
        self.slow_backbone = deepcopy(backbone).requires_grad_(False)
        self.slow_projector = deepcopy(self.projector).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(QUEUE, DIMENSION))
        self.register_buffer("queue_labels", torch.full((QUEUE,), UNKNOWN))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))  # where the queue is written next
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def losses(self, network: BaseNetwork, batch: Batch) -> Iterable[Tensor]:
        plain, large, small = self._views(batch.progress)
        given = (batch.pixels, batch.sizes, batch.generator, batch.part)
        labels = batch.labels.to(batch.pixels.device, non_blocking=True)
        labels = torch.cat([labels + fantasy * self.classes for fantasy in range(FANTASIES)])

        features = self._encoded(network.backbone, plain(*given), batch)
        scores = torch.cat([network.head(network.projection(features)), self.fantasy_head(features)], 1)
        yield F.cross_entropy(SCALE * scores, labels)

        crops = large(*given)
        keys = self._keys(network, crops[1:], batch)
        yield LARGE_WEIGHT * self._contrast(network, crops[:1], keys, labels, batch)
        # In one pass, or small crops would have most of the say in BatchNorm's running statistics.
        yield SMALL_WEIGHT * self._contrast(network, small(*given), keys, labels, batch)
        self._enqueue(keys, labels)

    def _views(self, progress: float) -> tuple[Views, Views, Views]:
        """Padded crops for the classifier, large crops as the recipe has them, and small ones."""
        large = replace(views_of(self.recipe, progress), count=2)
        plain = replace(large, count=1, crops=preprocess_of(self.recipe), jitter=0.0, grayscale=0.0)
        _, scale, size = _crops(self.recipe)
        return plain, large, replace(large, count=SMALL_CROPS, scale=scale, size=round(size * large.size))

    def _encoded(self, backbone: Backbone, crops: Tensor, batch: Batch) -> Tensor:
        """(V, k, 3, h, w) crops of this process's part -> features of the batch in all fantasies, crop by crop."""
        views = torch.stack([fantasies(crop).view(FANTASIES, *crop.shape) for crop in crops])
        return self.encoded(backbone, views.flatten(0, 1), batch)

    def _contrast(self, network: BaseNetwork, crops: Tensor, keys: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        """The mean over V crops of an image."""
        queries = F.normalize(self.projector(self._encoded(network.backbone, crops, batch)).float())
        keys, labels = keys.repeat(len(crops), 1), labels.repeat(len(crops))
        return queue_contrast(queries, keys, labels, self.queue, self.queue_labels)

    @torch.no_grad()
    def _keys(self, network: BaseNetwork, crops: Tensor, batch: Batch) -> Tensor:
        """What the momentum encoder, moved on by a step, makes of the batch: (n, d) unit vectors.

        It follows at once in the beginning and more slowly later, or a short training would be spent near the start.
        """
        kept = ((1 + self.steps) / (10 + self.steps)).clamp_max(MOMENTUM)
        self.steps += 1
        pairs = ((self.slow_backbone, network.backbone), (self.slow_projector, self.projector))
        for slow, fast in pairs:
            for follower, leader in zip(slow.parameters(), fast.parameters(), strict=True):
                follower.lerp_(leader, 1 - kept)
        return F.normalize(self.slow_projector(self._encoded(self.slow_backbone, crops, batch)).float())

    @torch.no_grad()
    def _enqueue(self, keys: Tensor, labels: Tensor) -> None:
        """In place of the oldest."""
        keys, labels = keys[-QUEUE:], labels[-QUEUE:]
        places = (self.place + torch.arange(len(keys), device=keys.device)) % QUEUE
        self.queue.index_copy_(0, places, keys)
        self.queue_labels.index_copy_(0, places, labels)
        self.place.copy_((self.place + len(keys)) % QUEUE)

    @classmethod
    def passes(cls, recipe: Config) -> float:
        """The view of the classifier, query, key and small crops, each in all fantasies."""
        return float(FANTASIES * (3 + SMALL_CROPS))


def _crops(recipe: Config) -> tuple[tuple[float, float], tuple[float, float], float]:
    return OF_FEW if recipe.views.size < FEW_PIXELS else OF_MANY


class FantasyFeatures(nn.Module):
    """(n, 3, h, w) -> (n, 2 d): the features of all fantasies of an image, one after the other."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat(self.backbone(fantasies(images)).chunk(FANTASIES), 1)


class Savc(FrozenFeatureMethod):
    """Keeps one mean per class and transformation."""

    title = "SAVC"
    table_order = 130
    images_seen_note = "SAVC counts every crop, small ones and those of the momentum encoder too, upright and turned"
    means = torch.empty(0)  # (classes, 2 d)

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        encoder = FantasyFeatures(self.backbone)
        self.features = FeatureCache(encoder, evaluation_crops_of(config), context.device, quiet=context.quiet)

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """views are the two large crops, with the paper's colours."""
        plain = plain_recipe(config)
        scale, _, _ = _crops(config)
        views = replace(plain.views, kind="resized", count=2, scale=scale, jitter=0.8, grayscale=0.2)
        return replace(plain, views=views, train=replace(plain.train, objective="savc", compile="off"))

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.means = self.means_of(base, 0)

    def learn(self, new: Images) -> None:
        self.means = torch.cat([self.means, self.means_of(new, len(self.means))])

    def scores(self, images: Images) -> Tensor:
        """The mean over the fantasies of the cosine between an image's feature and the class mean, both of the same."""
        pairs = zip(self.features(images).chunk(FANTASIES, 1), self.means.chunk(FANTASIES, 1), strict=True)
        return torch.stack([cosine_scores(features, means) for features, means in pairs]).mean(0)

    def memory(self) -> Memory:
        return Memory(floats=self.means.numel())

    def own_state(self) -> dict[str, Tensor]:
        """means"""
        return {"means": self.means}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.means = state["means"]
