"""CEC (Zhang et al., CVPR 2021): class means adapted by graph attention, trained on pseudo-incremental episodes.

Base training is cross-entropy under a cosine classifier. Then episodes are made of the base classes: some of them are
the known classes, the same ones rotated by 90, 180 or 270 degrees are the new ones, and an attention layer over all
prototypes and the query is trained to update each by the others. In real sessions nothing is trained: a class is its
mean.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fscil.config import Config
from fscil.data.images import Images, Ints
from fscil.gallery import class_means
from fscil.methods.base import Memory
from fscil.methods.toolkit.growing_network import NetworkMethod, check_numbers
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.protocol import Protocol
from fscil.runtime.interrupts import stop_requests
from fscil.runtime.memory import rows_per_chunk
from fscil.runtime.progress import ProgressBar
from fscil.runtime.seeding import seeded
from fscil.training.base_training import TrainedNetwork
from fscil.training.build import preprocess_of, views_of
from fscil.training.context import Context

SCALE = 16.0  # of the cosines in the loss
WAY, QUERIES = 15, 15  # of an episode: classes, and queries of each; one more image of the class is its prototype
FEWER_QUERIES = {"cub200": 10}  # by data set
EPOCHS, EPISODES = 100, 50  # at most, and episodes in each
BACKBONE_RATE_SMALL, BACKBONE_RATE, ATTENTION_RATE = 0.002, 0.0002, 0.0002
SMALL = 32  # pixels: images up to this size get the first of the backbone's rates
MAX_PIXELS = 2**20  # that pass the backbone at once in an episode


class GraphAttention(nn.Module):
    """One attention head over a query and all prototypes, fully connected: residual connection, then LayerNorm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_normal_(layer.weight)
        self.norm = nn.LayerNorm(dim)

    def forward(self, prototypes: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """(C, d), (n, d) -> the prototypes as updated for each query (n, C, d), and the updated queries (n, d).

        The attention among the prototypes is the same for every query, so it is computed once; adding a query to the
        softmax of a prototype then is an interpolation between the two.
        """
        root = math.sqrt(prototypes.shape[1])
        q, k, v = self.query(prototypes), self.key(prototypes), self.value(prototypes)  # of the prototypes
        own_q, own_k, own_v = self.query(queries), self.key(queries), self.value(queries)  # of the queries

        logits = q @ k.T / root  # (C, C)
        attended = logits.softmax(1) @ v  # (C, d)
        weight = (own_k @ q.T / root - logits.logsumexp(1)).sigmoid()[..., None]  # (n, C, 1)
        updated = prototypes + attended + weight * (own_v[:, None] - attended)

        to_itself = (own_q * own_k).sum(1, keepdim=True)
        attention = (torch.cat([own_q @ k.T, to_itself], 1) / root).softmax(1)  # (n, C + 1)
        updated_queries = queries + attention[:, :-1] @ v + attention[:, -1:] * own_v
        return self.norm(updated), self.norm(updated_queries)

    def scores(self, prototypes: Tensor, queries: Tensor) -> Tensor:
        """(C, d), (n, d) -> (n, C) cosines of query and prototype after the update."""
        updated, updated_queries = self(prototypes, queries)
        return F.cosine_similarity(updated, updated_queries[:, None], dim=2)


def rotated(images: Tensor, turns: Tensor) -> Tensor:
    """(n, 3, h, h) images, each rotated by its number (n,) of quarter turns, 1 to 3."""
    each = torch.stack([images.rot90(turn, (2, 3)) for turn in (1, 2, 3)])
    return each[turns - 1, torch.arange(len(images))]


def episode(labels: Ints, random: np.random.Generator, queries: int = QUERIES) -> tuple[Ints, Ints]:
    """Positions of the support, one image each of up to WAY classes, and of up to `queries` other images of each."""
    classes = np.unique(labels)
    chosen = random.choice(classes, min(WAY, len(classes)), replace=False)
    members = [random.permutation(np.flatnonzero(labels == label))[: 1 + queries] for label in chosen]
    return np.array([own[0] for own in members]), np.concatenate([own[1:] for own in members])


def queries_of(config: Config) -> int:
    """Queries of each class in an episode."""
    return FEWER_QUERIES.get(config.data.name, QUERIES)


def episodes_of(config: Config, base: Images) -> int:
    """As set, or EPISODES for each epoch of base training, at most EPOCHS of them, which is the paper's number."""
    if max(base.counts.values()) < 2:
        return 0  # no class has both a prototype and a query
    given = config.incremental.episodes
    return min(EPOCHS, config.train.epochs) * EPISODES if given is None else given


def rate_factor(number: int, total: int) -> float:
    """Of the rates in episode 0, 1, … of so many: halved after every fifth of them."""
    return 0.5 ** (5 * number // total)


class Cec(NetworkMethod):
    """The classifier's weights are the class means."""

    title = "CEC"
    trains_in_episodes = True
    table_order = 60
    images_seen_note = (
        f"CEC's episodes are counted too: {EPISODES} for each epoch of base training, at most {EPOCHS * EPISODES:,} as "
        "in its paper, unless incremental.episodes says otherwise"
    )

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        with seeded(config.train.seed):
            self.attention = GraphAttention(self.network.backbone.feature_dim).to(context.device)

    @classmethod
    def images_seen(cls, config: Config, base: Images, protocol: Protocol) -> float:
        """Every image of an episode passes twice, once rotated."""
        way, each = min(WAY, len(base.counts)), np.mean([min(1 + queries_of(config), n) for n in base.counts.values()])
        return super().images_seen(config, base, protocol) + episodes_of(config, base) * 2 * way * float(each)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self._train_on_episodes(base)
        self.network.weights_changed()
        self.network.set_class_vectors(self._means(base, 0))

    def _train_on_episodes(self, base: Images) -> None:
        backbone, total = self.network.backbone, episodes_of(self.config, base)
        rates = (BACKBONE_RATE_SMALL if self.config.views.size <= SMALL else BACKBONE_RATE, ATTENTION_RATE)
        groups = [{"params": list(part.parameters())} for part in (backbone, self.attention)]
        optimizer = torch.optim.SGD(groups, rates[0], 0.9, weight_decay=5e-4, nesterov=True)
        random = np.random.default_rng([self.config.train.seed, 0])
        generator = torch.Generator().manual_seed(int(random.integers(2**62)))
        what = "CEC: episodes" if total == EPOCHS * EPISODES else f"CEC: episodes (in the paper {EPOCHS * EPISODES:,})"
        with stop_requests() as stop, ProgressBar(what, total, quiet=self.context.quiet) as bar:
            for number in range(total):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * rate_factor(number, total)
                optimizer.zero_grad(set_to_none=True)
                loss = self.episode_loss(base, random, generator if number < EPISODES else None)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                bar.advance(1)
                if stop.is_set():
                    raise KeyboardInterrupt

    def episode_loss(self, base: Images, random: np.random.Generator, generator: torch.Generator | None) -> Tensor:
        """Of a random episode: its classes are 0..way-1, and the same ones rotated way..2 way-1.

        generator: of augmentation, which only the first epoch has; None: images as they are in the test.
        """
        support, queries = episode(base.labels, random, queries_of(self.config))
        way = len(support)
        number = np.zeros(max(base.counts) + 1, np.int64)  # of a base class in the episode
        number[base.labels[support]] = np.arange(way)
        labels = torch.from_numpy(number[base.labels[np.concatenate([support, queries])]])
        turns = torch.from_numpy(random.integers(1, 4, way))[labels]

        pixels, sizes = map(torch.from_numpy, base.batch(np.concatenate([support, queries])))
        pixels, recipe = pixels.to(self.context.device), self.network.recipe
        known = views_of(recipe)(pixels, sizes, generator)[0] if generator else preprocess_of(recipe)(pixels, sizes)
        with torch.autocast(self.context.device.type, torch.bfloat16, enabled=recipe.train.precision == "bf16"):
            known_features, new_features = self._encode(torch.cat([known, rotated(known, turns)])).float().chunk(2)

        prototypes = torch.cat([known_features[:way], new_features[:way]])
        cosines = self.attention.scores(prototypes, torch.cat([known_features[way:], new_features[way:]]))
        target = torch.cat([labels[way:], labels[way:] + way]).to(self.context.device)
        return F.cross_entropy(SCALE * cosines, target)

    def _encode(self, images: Tensor) -> Tensor:
        """Features. Those of a large episode are computed in parts and again in the backward pass, to save memory."""
        images = images.contiguous(memory_format=torch.channels_last)
        parts = torch.split(images, max(1, MAX_PIXELS // (images.shape[2] * images.shape[3])))
        if len(parts) == 1:
            features: Tensor = self.network.backbone(images)
            return features
        return torch.cat([checkpoint(self.network.backbone, part, use_reentrant=False) for part in parts])

    def _means(self, images: Images, first: int) -> Tensor:
        """(classes, d), of images whose classes are numbered from first."""
        labels = torch.from_numpy(images.labels - first)
        return class_means(self.network.features(images), labels, len(images.counts))

    def learn(self, new: Images) -> None:
        prototypes = self.network.head.weight.detach().cpu()
        check_numbers(new, len(prototypes))
        self.network.set_class_vectors(torch.cat([prototypes, self._means(new, len(prototypes))]))

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        prototypes = self.network.head.weight
        parts = torch.split(self.network.features(images), rows_per_chunk(prototypes.numel()))
        return torch.cat([self.attention.scores(prototypes, part.to(prototypes.device)).cpu() for part in parts])

    def memory(self) -> Memory:
        return Memory(images=0, floats=self.network.head.weight.numel())

    def own_state(self) -> dict[str, Tensor]:
        """attention.*"""
        return with_prefix("attention", self.attention)

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        # Older states call the query and key layers "ask" and "answer".
        renamed = {"ask.weight": "query.weight", "answer.weight": "key.weight"}
        attention = {renamed.get(name, name): value for name, value in of_prefix("attention", state).items()}
        load_state(self.attention, attention, "the state")
