"""TOPIC (Tao et al., CVPR 2020): a neural gas keeps the topology of feature space, and training must preserve it.

Its nodes spread over the features of the base classes. While a session is learned, the feature of every node's image
must stay where it was (anchor loss), and that of a new image moves towards its class's own node and away from the nodes
linked with it (min-max loss).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.features import FeatureCache
from fscil.gallery import class_means, cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.exemplars import from_tensors, joined, to_tensors
from fscil.methods.toolkit.neural_gas import NeuralGas
from fscil.methods.toolkit.session_training import ImprintingMethod
from fscil.training.build import preprocess_of

NODES = 400  # for the base classes; each new class brings one more
ANCHOR_WEIGHT = 350.0
SMALLEST_VARIANCE, LARGEST_VARIANCE = 0.9, 1.0  # of a node, in the anchor loss
MIN_MAX_WEIGHT = 0.005
MARGIN = 0.5  # of the cosine distance between a new image and nodes of other classes


def anchor_loss(features: Tensor, before: Tensor, spread: Tensor) -> Tensor:
    """All (N, d): features of the nodes' images now and before the session, which are normalised here, and the nodes'
    variances. The squared Mahalanobis distance, mean over nodes; zero when a session begins.
    """
    moved = F.normalize(features) - F.normalize(before)
    return (moved.square() / spread.clamp(SMALLEST_VARIANCE, LARGEST_VARIANCE)).sum(1).mean()


def min_max_loss(
    features: Tensor, labels: Tensor, centroids: Tensor, node_labels: Tensor, linked: Tensor, margin: float = MARGIN
) -> Tensor:
    """(n, d) and (n,) of new images; (N, d), (N,) and (N, N) of the nodes. Mean over images.

    Cosine distance to the nearest node of the own class, and a hinge loss for each node of another class linked with
    it: how much its distance falls short of the margin.
    """
    distance = 1 - cosine_scores(features, centroids)
    own = labels[:, None] == node_labels
    nearest = distance.detach().masked_fill(~own, torch.inf).argmin(1)
    to_own = distance.gather(1, nearest[:, None]).squeeze(1)
    too_near = (margin - distance).clamp_min(0) * (linked[nearest] & ~own)
    return (to_own + too_near.sum(1)).mean()


def node_spread(features: Tensor, centroids: Tensor) -> Tensor:
    """(n, d), (N, d) -> (N, d) variance of the features nearest to each node, about the node; zero without any."""
    nearest = torch.cdist(features, centroids).argmin(1)
    sums = torch.zeros_like(centroids).index_add_(0, nearest, (features - centroids[nearest]).square())
    counts = torch.bincount(nearest, minlength=len(centroids))
    return sums / counts[:, None].clamp_min(1)


class Topic(ImprintingMethod):
    """Keeps the image nearest to each node, and the node's centroid, variance and edges."""

    title = "TOPIC"
    table_order = 50
    session_lr = 0.001
    session_steps = 30
    gas: NeuralGas  # of N nodes
    spread: Tensor  # (N, d)
    nodes: Images  # the image of each node, with its label

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        super().fit_base(base, shots)
        features = self.network.features(base)
        self.gas = NeuralGas.fit(features.numpy(), min(NODES, len(base)), self.config.train.seed)
        centroids = torch.from_numpy(self.gas.centroids)
        self.spread = node_spread(F.normalize(features), F.normalize(centroids))
        self.nodes = joined(base.select(torch.cdist(centroids, features).argmin(1).numpy()))

    def learn(self, new: Images) -> None:
        first, old = self.grow(new), len(self.nodes)
        self._add_nodes(new, first)
        self._train(new, first, old)
        self._update_new_nodes(new, first, old)

    def _add_nodes(self, new: Images, first: int) -> None:
        """A node on the mean of each new class, linked with the nodes nearest to its images."""
        features = self.network.features(new)
        self.gas.grow(class_means(features, torch.from_numpy(new.labels - first), len(new.counts)).numpy())
        for feature in features.numpy():
            self.gas.link(feature)

    def _train(self, new: Images, first: int, old: int) -> None:
        device, batch, preprocess = self.context.device, self.config.incremental.batch, preprocess_of(self.config)
        centroids, spread = torch.from_numpy(self.gas.centroids).to(device), self.spread.to(device)
        linked = torch.from_numpy(self.gas.linked).to(device)
        labels_of_nodes = np.concatenate([self.nodes.labels, np.arange(first, first + len(new.counts))])
        node_labels = torch.from_numpy(labels_of_nodes).to(device)
        random = np.random.default_rng([self.config.train.seed, first])
        # Of one crop, as in the loss, however many test images have: or the anchor would not begin at zero.
        of_one_crop = FeatureCache(self.network.backbone, preprocess, device, quiet=self.context.quiet)
        before = of_one_crop(self.nodes).to(device)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            some = random.choice(old, min(batch, old), replace=False)
            pixels, sizes = self.nodes.batch(some)
            images = preprocess(torch.from_numpy(pixels).to(device), torch.from_numpy(sizes))
            features, anchored = self.network.backbone(views), self.network.backbone(images)
            return (
                F.cross_entropy(self.network.classify(features), labels)
                + ANCHOR_WEIGHT * anchor_loss(anchored, before[some], spread[some])
                + MIN_MAX_WEIGHT * min_max_loss(features, labels, centroids, node_labels, linked)
            )

        self.train(new, loss, seed=first)

    def _update_new_nodes(self, new: Images, first: int, old: int) -> None:
        """To the class means after training; the anchor loss kept the features of the old ones in place."""
        features, labels = self.network.features(new), torch.from_numpy(new.labels - first)
        means = class_means(features, labels, len(new.counts))
        away = torch.cdist(means, features).masked_fill(torch.arange(len(means))[:, None] != labels, torch.inf)
        self.gas.centroids[old:] = means.numpy()
        self.nodes = joined(self.nodes, new.select(away.argmin(1).numpy()))
        # Too few images to measure a variance: the old nodes' on average.
        self.spread = torch.cat([self.spread, self.spread.mean(0).expand(len(means), -1)])

    def memory(self) -> Memory:
        floats = super().memory().floats + self.gas.centroids.size + self.spread.numel()
        return Memory(images=len(self.nodes), floats=floats)

    def own_state(self) -> dict[str, Tensor]:
        """base.*, exemplars.*, nodes.centroids, nodes.ages, nodes.spread"""
        return {
            **super().own_state(),
            **to_tensors(self.nodes),
            "nodes.centroids": torch.from_numpy(self.gas.centroids.copy()),
            "nodes.ages": torch.from_numpy(self.gas.ages.copy()),
            "nodes.spread": self.spread,
        }

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.nodes, self.spread = from_tensors(state), state["nodes.spread"]
        self.gas = NeuralGas(state["nodes.centroids"].numpy().copy(), state["nodes.ages"].numpy().copy())
