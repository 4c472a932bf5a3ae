"""Semantic-aware knowledge distillation (Cheraghian et al., CVPR 2021): features are mapped to what class names mean.

The word vectors of the base classes are clustered into superclasses. Each superclass has an embedding of the feature;
attention says how much of each an image gets. Feature and embedding together are mapped into word space, where a class
is its word vector: a new class needs no new weights. In a session the mapping goes on learning from the new images,
held by distillation to what it said of the old classes. Backbone, embeddings and attention stay as they are.
"""

import copy
from collections.abc import Sequence

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
    train_on_features,
)
from fscil.methods.toolkit.word_method import WordMethod
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.runtime.seeding import seeded
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context

EPOCHS, BATCH, RATE = 30, 128, 1e-3  # on the base features
SESSION_RATE = 5e-5
WIDTH = 256  # of an embedding, where the feature is not narrower
HIDDEN = 512  # of the mapping
SCALE = 16.0  # of cosines, in word space
DISTILLATION = 1.0  # its weight beside cross-entropy


class SemanticMapping(nn.Module):
    """Features -> word space, by way of one embedding per superclass."""

    def __init__(self, feature_dim: int, word_dim: int, superclasses: int) -> None:
        super().__init__()
        width = min(feature_dim, WIDTH)
        self.embeddings = nn.Linear(feature_dim, superclasses * width)
        self.attention = nn.Linear(feature_dim, superclasses)
        self.mapping = nn.Sequential(
            nn.Linear(feature_dim + width, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, word_dim)
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d) -> (n, word_dim), and the attention's logits (n, superclasses)"""
        logits = self.attention(features)
        embeddings = F.leaky_relu(self.embeddings(features)).view(*logits.shape, -1)
        embedding = torch.einsum("ns,nsw->nw", logits.softmax(1), embeddings)
        return self.mapping(torch.cat([features, embedding], 1)), logits


def similarity(mapped: Tensor, words: Tensor) -> Tensor:
    """(n, d) places in word space, (classes, d) word vectors -> (n, classes)"""
    return SCALE * cosine_scores(mapped, words)


def superclasses(words: Tensor, seed: int) -> Tensor:
    """(classes, d) word vectors -> (classes,): which cluster each is in, about as many clusters as classes in each."""
    from sklearn.cluster import KMeans

    count = min(round(len(words) ** 0.5), len(torch.unique(words, dim=0)))
    clusters = KMeans(count, n_init=10, random_state=seed).fit(words.double().cpu().numpy())
    return torch.from_numpy(clusters.labels_).long().to(words.device)


class SemanticKD(WordMethod):
    """Keeps the word vectors of the classes it has seen, and no image."""

    title = "Semantic-aware KD"
    table_order = 7

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self._mapping = self._new_mapping(superclasses=1)  # until the base classes are known

    def _new_mapping(self, superclasses: int) -> SemanticMapping:
        with seeded(self.config.train.seed):
            mapping = SemanticMapping(self.network.backbone.feature_dim, self.word_dim, superclasses)
        return mapping.to(self.context.device)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.classes = len(base.counts)
        words = self.words
        superclass = superclasses(words, self.config.train.seed)
        mapping = self._mapping = self._new_mapping(int(superclass.max()) + 1)

        def loss(features: Tensor, labels: Tensor) -> Tensor:
            """The right word, and attention to the right superclass."""
            mapped, attention = mapping(features)
            return F.cross_entropy(similarity(mapped, words), labels) + F.cross_entropy(attention, superclass[labels])

        self._train(mapping, base, loss, EPOCHS, BATCH, RATE)

    def learn(self, new: Images) -> None:
        check_numbers(new, self.classes)
        mapping, old, old_words = self._mapping, copy.deepcopy(self._mapping), self.words
        self.classes += len(new.counts)
        words = self.words

        def loss(features: Tensor, labels: Tensor) -> Tensor:
            """The right word, and of the old words what the old mapping says."""
            with torch.no_grad():
                before = similarity(old(features)[0], old_words)
            scores = similarity(mapping(features)[0], words)
            kept = distillation(scores[:, : len(old_words)], before)
            return F.cross_entropy(scores, labels) + DISTILLATION * kept

        self._train(mapping.mapping, new, loss, SESSION_STEPS, len(new), SESSION_RATE)

    def _train(self, part: nn.Module, images: Images, loss: Loss, epochs: int, batch: int, rate: float) -> None:
        examples = self.features(images), torch.from_numpy(images.labels).to(self.context.device)
        generator = generator_of(self.config.train.seed, int(images.labels.min()))
        train_on_features(part, lambda: examples, loss, epochs, batch, rate, generator, self.context, self.title)

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        return similarity(self._mapping(self.features(images))[0], self.words).cpu()

    def memory(self) -> Memory:
        return Memory(floats=self.words.numel())

    def own_state(self) -> dict[str, Tensor]:
        """words, mapping.*"""
        return {**super().own_state(), **with_prefix("mapping", self._mapping)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self._mapping = self._new_mapping(len(state["mapping.attention.bias"]))
        load_state(self._mapping, of_prefix("mapping", state), "the state")
