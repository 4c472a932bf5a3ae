"""Synthesized features on a mixture of subspaces (Cheraghian et al., ICCV 2021): old classes are imagined, not kept.

The base features are modelled as a mixture of linear subspaces. A feature and its place in that mixture are mapped into
word space, where a class is the vector of its name. A variational autoencoder learns to make features of a class from
its word vector; in a session it supplies the old classes, so that the mapping learns the new ones among all others,
held by distillation to what it said before. The backbone stays as base training left it.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.gallery import cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.methods.toolkit.train_on_features import (
    SESSION_STEPS,
    Loss,
    generator_of,
    standardised,
    train_on_features,
)
from fscil.methods.toolkit.word_method import WordMethod
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.runtime.seeding import seeded
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context

EPOCHS, BATCH = 30, 128  # on the base features
RATE = 1e-3
SCALE = 16.0  # of cosines, in word space
SUBSPACES, RANK = 10, 32  # a subspace has at most a quarter of the directions there are
SHARPNESS = 10.0  # of belonging to a subspace
LATENT, HIDDEN = 64, 256
DISTILLATION = 1.0  # its weight beside cross-entropy


class MixtureOfSubspaces(nn.Module):
    """Affine subspaces, each a mean and an orthonormal basis; a feature belongs most to the one it is nearest to."""

    means: Tensor  # (k, d)
    bases: Tensor  # (k, d, rank), zero columns where the features had fewer directions
    spread: Tensor  # mean square distance of features and subspaces

    def __init__(self, feature_dim: int, count: int = SUBSPACES) -> None:
        super().__init__()
        rank = max(1, min(RANK, feature_dim // 4))
        self.register_buffer("means", torch.zeros(count, feature_dim))
        self.register_buffer("bases", torch.zeros(count, feature_dim, rank))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def of(cls, features: Tensor, seed: int) -> "MixtureOfSubspaces":
        """(n, d) features -> their clusters, and the main directions of each."""
        from sklearn.cluster import KMeans

        count = min(SUBSPACES, len(torch.unique(features, dim=0)))
        clusters = KMeans(count, n_init=3, random_state=seed).fit(features.cpu().numpy())
        found = cls(features.shape[1], count).to(features.device)
        for number in range(count):
            own = features[torch.from_numpy(clusters.labels_ == number).to(features.device)]
            found.means[number] = own.mean(0)
            _, sizes, directions = torch.linalg.svd(own - own.mean(0), full_matrices=False)
            directions = directions[sizes > 1e-4][: found.bases.shape[2]]
            found.bases[number, :, : len(directions)] = directions.T
        found.spread = found.place(features)[1].mean().clamp(min=1e-6)
        return found

    def place(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d) -> coordinates in each subspace (n, k, rank), and square distances from each (n, k)"""
        origin = torch.einsum("kd,kdr->kr", self.means, self.bases)
        coordinates = torch.einsum("nd,kdr->nkr", features, self.bases) - origin
        distances = torch.cdist(features, self.means).square() - coordinates.square().sum(2)
        return coordinates, distances.clamp(min=0)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, k * rank): the coordinates in all subspaces, weighted by belonging"""
        coordinates, distances = self.place(features)
        belonging = (-SHARPNESS * distances / self.spread).softmax(1)
        return (belonging[..., None] * coordinates).flatten(1)


class Synthesizer(nn.Module):
    """A variational autoencoder of features, told which word they are of."""

    def __init__(self, feature_dim: int, word_dim: int) -> None:
        super().__init__()
        self.encoder = _two_layers(feature_dim + word_dim, HIDDEN, 2 * LATENT)
        self.decoder = _two_layers(LATENT + word_dim, HIDDEN, feature_dim)

    def loss(self, features: Tensor, words: Tensor, noise: Tensor) -> Tensor:
        """Square error of what comes back, and divergence of the code from N(0, 1). noise: (n, LATENT) of N(0, 1)"""
        mean, log_variance = self.encoder(torch.cat([features, standardised(words)], 1)).chunk(2, 1)
        again = self._decoded(mean + noise * (log_variance / 2).exp(), words)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        value: Tensor = ((again - features).square().sum(1) + divergence.sum(1)).mean()
        return value

    @torch.no_grad()
    def forward(self, words: Tensor, noise: Tensor) -> Tensor:
        """(n, word_dim) words -> (n, d) features of them"""
        return self._decoded(noise, words)

    def _decoded(self, code: Tensor, words: Tensor) -> Tensor:
        found: Tensor = self.decoder(torch.cat([code, standardised(words)], 1))
        return found


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LeakyReLU(), nn.Linear(hidden, outputs))


class Synthesized(WordMethod):
    """Keeps the word vectors of the classes it has seen, the subspaces and the synthesizer; no image, no feature."""

    title = "Synthesized features"
    table_order = 8

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self._new_parts(MixtureOfSubspaces(self.network.backbone.feature_dim))

    def _new_parts(self, subspaces: MixtureOfSubspaces) -> None:
        feature_dim, word_dim = self.network.backbone.feature_dim, self.word_dim
        self._subspaces = subspaces.to(self.context.device)
        with seeded(self.config.train.seed):
            inputs = feature_dim + subspaces.bases[:, 0].numel()
            self._mapping = _two_layers(inputs, 2 * HIDDEN, word_dim).to(self.context.device)
            self._synthesizer = Synthesizer(feature_dim, word_dim).to(self.context.device)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.classes = len(base.counts)
        features, labels = self.features(base), torch.from_numpy(base.labels).to(self.context.device)
        self._new_parts(MixtureOfSubspaces.of(features, self.config.train.seed))
        described = self._described(features)
        random = generator_of(self.config.train.seed, 0)

        def mapping_loss(described: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self._similarity(described), labels)

        how = EPOCHS, BATCH, RATE, random, self.context
        train_on_features(self._mapping, lambda: (described, labels), mapping_loss, *how, "mapping")
        train_on_features(
            self._synthesizer, lambda: (features, labels), self._synthesis(random), *how, "synthesized: features"
        )

    def learn(self, new: Images) -> None:
        check_numbers(new, self.classes)
        features = self.features(new)
        old = copy.copy(self)
        old._mapping, old._synthesizer = copy.deepcopy(self._mapping), copy.deepcopy(self._synthesizer)
        self.classes += len(new.counts)
        random = generator_of(self.config.train.seed, old.classes)
        members = [np.flatnonzero(new.labels == label) for label in range(old.classes, self.classes)]

        def examples() -> tuple[Tensor, Tensor]:
            """One of each class: of an old one a feature that was never an image, of a new one any of its own."""
            made = old._synthesizer(old.words, self._noise(old.classes, random))
            chosen = [own[int(torch.randint(len(own), (), generator=random))] for own in members]
            return torch.cat([made, features[chosen]]), torch.arange(self.classes, device=made.device)

        def described_examples() -> tuple[Tensor, Tensor]:
            features, labels = examples()
            return self._described(features), labels

        def mapping_loss(described: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                before = old._similarity(described)
            scores = self._similarity(described)
            return F.cross_entropy(scores, labels) + DISTILLATION * distillation(scores[:, : old.classes], before)

        how = SESSION_STEPS, self.classes, RATE, random, self.context
        train_on_features(self._mapping, described_examples, mapping_loss, *how, "mapping")
        train_on_features(self._synthesizer, examples, self._synthesis(random), *how, "synthesizer")

    def _described(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, d + k * rank): each feature beside its place in the subspaces"""
        return torch.cat([features, self._subspaces(features)], 1)

    def _similarity(self, described: Tensor) -> Tensor:
        """(n, d + k * rank) -> (n, classes): scaled cosines in word space"""
        return SCALE * cosine_scores(self._mapping(described), self.words)

    def _synthesis(self, random: torch.Generator) -> Loss:
        return lambda features, labels: self._synthesizer.loss(
            features, self.words[labels], self._noise(len(labels), random)
        )

    def _noise(self, count: int, random: torch.Generator) -> Tensor:
        return torch.randn(count, LATENT, generator=random).to(self.context.device)

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        return self._similarity(self._described(self.features(images))).cpu()

    def memory(self) -> Memory:
        """All that stands for old data: names, subspaces and what makes features."""
        kept = [self.words, *self._subspaces.buffers(), *self._synthesizer.parameters()]
        return Memory(floats=sum(tensor.numel() for tensor in kept))

    @property
    def _parts(self) -> dict[str, nn.Module]:
        return {"subspaces": self._subspaces, "mapping": self._mapping, "synthesizer": self._synthesizer}

    def own_state(self) -> dict[str, Tensor]:
        """words, subspaces.*, mapping.*, synthesizer.*"""
        parts = [with_prefix(part, module) for part, module in self._parts.items()]
        return {**super().own_state(), **{name: value for part in parts for name, value in part.items()}}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self._new_parts(MixtureOfSubspaces(self.network.backbone.feature_dim, len(state["subspaces.means"])))
        for part, module in self._parts.items():
            load_state(module, of_prefix(part, state), "the state")
