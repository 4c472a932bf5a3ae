"""Synthesized features on a mixture of subspaces (Cheraghian et al., ICCV 2021): old classes are generated, not kept.

The base features are modelled as a mixture of linear subspaces. A feature and its coordinates in that mixture are
mapped into word space, where a class is the vector of its name. A variational autoencoder learns to generate features
of a class from its word vector; in a session it generates those of the old classes, so that the mapping is trained on
all classes, with distillation on the scores of the old ones. The backbone stays as base training left it.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.methods.toolkit.train_on_features import SESSION_STEPS, Loss, Schedule, generator_of, standardised
from fscil.methods.toolkit.word_method import WordMethod, similarity
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.runtime.seeding import seeded

RATE = 1e-3
BASE_SCHEDULE = Schedule(epochs=30, batch=128, rate=RATE)
SUBSPACES, RANK = 10, 32  # of a subspace at most a quarter of the feature dimensions
SHARPNESS = 10.0  # of the softmax over subspaces
LATENT, HIDDEN = 64, 256
DISTILLATION = 1.0  # its weight relative to cross-entropy


class MixtureOfSubspaces(nn.Module):
    """Affine subspaces, each a mean and an orthonormal basis. A softmax over distances weights them for a feature."""

    means: Tensor  # (k, d)
    bases: Tensor  # (k, d, rank), zero columns where the features had fewer directions
    spread: Tensor  # mean squared distance of features from subspaces

    def __init__(self, feature_dim: int, count: int = SUBSPACES) -> None:
        super().__init__()
        rank = max(1, min(RANK, feature_dim // 4))
        self.register_buffer("means", torch.zeros(count, feature_dim))
        self.register_buffer("bases", torch.zeros(count, feature_dim, rank))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def of(cls, features: Tensor, seed: int) -> "MixtureOfSubspaces":
        """(n, d) features -> their clusters, and the principal components of each."""
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
        found.spread = found.project(features)[1].mean().clamp(min=1e-6)
        return found

    def project(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d) -> coordinates in each subspace (n, k, rank), and squared distances from each (n, k)"""
        origin = torch.einsum("kd,kdr->kr", self.means, self.bases)
        coordinates = torch.einsum("nd,kdr->nkr", features, self.bases) - origin
        distances = torch.cdist(features, self.means).square() - coordinates.square().sum(2)
        return coordinates, distances.clamp(min=0)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, k * rank): the coordinates in all subspaces, weighted by nearness"""
        coordinates, distances = self.project(features)
        weights = (-SHARPNESS * distances / self.spread).softmax(1)
        return (weights[..., None] * coordinates).flatten(1)


class Synthesizer(nn.Module):
    """A variational autoencoder of features, conditioned on word vectors."""

    def __init__(self, feature_dim: int, word_dim: int) -> None:
        super().__init__()
        self.encoder = _two_layers(feature_dim + word_dim, HIDDEN, 2 * LATENT)
        self.decoder = _two_layers(LATENT + word_dim, HIDDEN, feature_dim)

    def loss(self, features: Tensor, words: Tensor, noise: Tensor) -> Tensor:
        """Squared error of the reconstruction, KL divergence of the code from N(0, 1). noise: (n, LATENT) of N(0, 1)"""
        mean, log_variance = self.encoder(torch.cat([features, standardised(words)], 1)).chunk(2, 1)
        reconstruction = self._decoded(mean + noise * (log_variance / 2).exp(), words)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        value: Tensor = ((reconstruction - features).square().sum(1) + divergence.sum(1)).mean()
        return value

    @torch.no_grad()
    def forward(self, words: Tensor, noise: Tensor) -> Tensor:
        """(n, word_dim) word vectors, (n, LATENT) noise -> (n, d) generated features"""
        return self._decoded(noise, words)

    def _decoded(self, code: Tensor, words: Tensor) -> Tensor:
        found: Tensor = self.decoder(torch.cat([code, standardised(words)], 1))
        return found


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LeakyReLU(), nn.Linear(hidden, outputs))


class Synthesized(WordMethod):
    """Keeps the word vectors of the classes it has seen, the subspaces and the synthesizer; no image, no feature."""

    title = "Synthesized features (in the spirit of)"
    table_order = 80
    subspaces: MixtureOfSubspaces
    mapping: nn.Sequential  # (n, d + k * rank) -> (n, word_dim)
    synthesizer: Synthesizer

    def _new_parts(self, subspaces: MixtureOfSubspaces) -> None:
        feature_dim, word_dim = self.network.backbone.feature_dim, self.word_dim
        self.subspaces = subspaces.to(self.context.device)
        with seeded(self.config.train.seed):
            inputs = feature_dim + subspaces.bases[:, 0].numel()
            self.mapping = _two_layers(inputs, 2 * HIDDEN, word_dim).to(self.context.device)
            self.synthesizer = Synthesizer(feature_dim, word_dim).to(self.context.device)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.classes = len(base.counts)
        features, labels = self.features(base), torch.from_numpy(base.labels).to(self.context.device)
        self._new_parts(MixtureOfSubspaces.of(features, self.config.train.seed))
        inputs = self.with_coordinates(features)
        random = generator_of(self.config.train.seed, 0)

        def mapping_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(similarity(self.mapping(inputs), self.words), labels)

        synthesis_loss = self._synthesis_loss(random)
        self.train_part(self.mapping, lambda: (inputs, labels), mapping_loss, BASE_SCHEDULE, random)
        self.train_part(self.synthesizer, lambda: (features, labels), synthesis_loss, BASE_SCHEDULE, random)

    def learn(self, new: Images) -> None:
        first, old_words = self.classes, self.words
        check_numbers(new, first)
        features = self.features(new)
        old_mapping, old_synthesizer = copy.deepcopy(self.mapping), copy.deepcopy(self.synthesizer)
        self.classes += len(new.counts)
        random = generator_of(self.config.train.seed, first)
        members = [np.flatnonzero(new.labels == label) for label in range(first, self.classes)]

        def examples() -> tuple[Tensor, Tensor]:
            """One feature of each class: of an old one generated, of a new one that of a random image."""
            generated = old_synthesizer(old_words, self._noise(first, random))
            chosen = [own[int(torch.randint(len(own), (), generator=random))] for own in members]
            return torch.cat([generated, features[chosen]]), torch.arange(self.classes, device=features.device)

        def mapping_examples() -> tuple[Tensor, Tensor]:
            features, labels = examples()
            return self.with_coordinates(features), labels

        def mapping_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                before = similarity(old_mapping(inputs), old_words)
            scores = similarity(self.mapping(inputs), self.words)
            return F.cross_entropy(scores, labels) + DISTILLATION * distillation(scores[:, :first], before)

        schedule = Schedule(SESSION_STEPS, self.classes, RATE)
        self.train_part(self.mapping, mapping_examples, mapping_loss, schedule, random)
        self.train_part(self.synthesizer, examples, self._synthesis_loss(random), schedule, random)

    def with_coordinates(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, d + k * rank): each feature and its coordinates in the subspaces"""
        return torch.cat([features, self.subspaces(features)], 1)

    def _synthesis_loss(self, random: torch.Generator) -> Loss:
        return lambda features, labels: self.synthesizer.loss(
            features, self.words[labels], self._noise(len(labels), random)
        )

    def _noise(self, count: int, random: torch.Generator) -> Tensor:
        return torch.randn(count, LATENT, generator=random).to(self.context.device)

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        return similarity(self.mapping(self.with_coordinates(self.features(images))), self.words).cpu()

    def memory(self) -> Memory:
        """All that stands for old data: word vectors, subspaces and synthesizer."""
        kept = [self.words, *self.subspaces.buffers(), *self.synthesizer.parameters()]
        return Memory(floats=sum(tensor.numel() for tensor in kept))

    @property
    def _parts(self) -> dict[str, nn.Module]:
        return {"subspaces": self.subspaces, "mapping": self.mapping, "synthesizer": self.synthesizer}

    def own_state(self) -> dict[str, Tensor]:
        """words, subspaces.*, mapping.*, synthesizer.*"""
        parts = [with_prefix(part, module) for part, module in self._parts.items()]
        return {**super().own_state(), **{name: value for part in parts for name, value in part.items()}}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self._new_parts(MixtureOfSubspaces(self.network.backbone.feature_dim, len(state["subspaces.means"])))
        for part, module in self._parts.items():
            load_state(module, of_prefix(part, state), "the state")
