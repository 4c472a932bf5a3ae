"""Semantic-aware knowledge distillation (Cheraghian et al., CVPR 2021): features are mapped to the words of classes.

The word vectors of the base classes are clustered into superclasses. Each superclass has an embedding of the feature;
an attention layer weights the embeddings. Feature and weighted embedding are mapped into word space, where a class is
its word vector: a new class needs no new weights. In a session only the mapping is trained, on the new images, with
distillation on the scores of the old classes. Backbone, embeddings and attention are frozen.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.methods.toolkit.train_on_features import SESSION_STEPS, Loss, Schedule, generator_of
from fscil.methods.toolkit.word_method import WordMethod, similarity
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.runtime.seeding import seeded

BASE_SCHEDULE = Schedule(epochs=30, batch=128, rate=1e-3)
SESSION_RATE = 5e-5
WIDTH = 256  # of an embedding, at most the width of the feature
HIDDEN = 512  # of the mapping
DISTILLATION = 1.0  # its weight relative to cross-entropy


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


def superclasses(words: Tensor, seed: int) -> Tensor:
    """(classes, d) word vectors -> (classes,): which cluster each is in, about as many clusters as classes in each."""
    from sklearn.cluster import KMeans

    count = min(round(len(words) ** 0.5), len(torch.unique(words, dim=0)))
    clusters = KMeans(count, n_init=10, random_state=seed).fit(words.double().cpu().numpy())
    return torch.from_numpy(clusters.labels_).long().to(words.device)


class SemanticKD(WordMethod):
    """Keeps the word vectors of the classes it has seen, and no image."""

    title = "Semantic-aware KD (in the spirit of)"
    table_order = 70
    mapping: SemanticMapping

    def _new_mapping(self, superclasses: int) -> SemanticMapping:
        with seeded(self.config.train.seed):
            mapping = SemanticMapping(self.network.backbone.feature_dim, self.word_dim, superclasses)
        return mapping.to(self.context.device)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.classes = len(base.counts)
        words = self.words
        superclass = superclasses(words, self.config.train.seed)
        mapping = self.mapping = self._new_mapping(int(superclass.max()) + 1)

        def loss(features: Tensor, labels: Tensor) -> Tensor:
            """Of the class by its word, and of the attention by the superclass."""
            mapped, attention = mapping(features)
            return F.cross_entropy(similarity(mapped, words), labels) + F.cross_entropy(attention, superclass[labels])

        self._train(mapping, base, loss, BASE_SCHEDULE)

    def learn(self, new: Images) -> None:
        check_numbers(new, self.classes)
        mapping, old_mapping, old_words = self.mapping, copy.deepcopy(self.mapping), self.words
        self.classes += len(new.counts)
        words = self.words

        def loss(features: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                before = similarity(old_mapping(features)[0], old_words)
            scores = similarity(mapping(features)[0], words)
            distilled = distillation(scores[:, : len(old_words)], before)
            return F.cross_entropy(scores, labels) + DISTILLATION * distilled

        self._train(mapping.mapping, new, loss, Schedule(SESSION_STEPS, len(new), SESSION_RATE))

    def _train(self, part: nn.Module, images: Images, loss: Loss, schedule: Schedule) -> None:
        examples = self.features(images), torch.from_numpy(images.labels).to(self.context.device)
        generator = generator_of(self.config.train.seed, int(images.labels.min()))
        self.train_part(part, lambda: examples, loss, schedule, generator)

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        return similarity(self.mapping(self.features(images))[0], self.words).cpu()

    def memory(self) -> Memory:
        return Memory(floats=self.words.numel())

    def own_state(self) -> dict[str, Tensor]:
        """words, mapping.*"""
        return {**super().own_state(), **with_prefix("mapping", self.mapping)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.mapping = self._new_mapping(len(state["mapping.attention.bias"]))
        load_state(self.mapping, of_prefix("mapping", state), "the state")
