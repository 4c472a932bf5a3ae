"""Semantic-aware knowledge distillation (Cheraghian et al., CVPR 2021): features are mapped to what class names mean.

The word vectors of the base classes are clustered into superclasses. Each superclass has an embedding of the feature;
attention says how much of each an image gets. Feature and embedding together are mapped into word space, where a class
is its word vector: a new class needs no new weights. In a session the mapping goes on learning from the new images,
held by distillation to what it said of the old classes. The backbone stays as base training left it.
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
from fscil.methods.distillation import distillation
from fscil.methods.feature_training import Loss, fit, generator_of, standardised
from fscil.methods.learner import Learner, check_numbers
from fscil.methods.pretraining import plain_recipe
from fscil.training import Trainer, load_state
from fscil.words import class_vectors

EPOCHS, BATCH, RATE = 50, 128, 1e-3  # on the base features
SESSION_RATE = 1e-4
WIDTH = 256  # of an embedding, where the feature is not narrower
HIDDEN = 512  # of the mapping
SCALE = 16.0  # of cosines, in word space
DISTILLATION = 10.0  # its weight beside the other losses


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


def superclass_centres(words: Tensor, seed: int) -> Tensor:
    """(classes, d) word vectors -> (superclasses, d): about as many superclasses as classes in each."""
    from sklearn.cluster import KMeans

    count = min(round(len(words) ** 0.5), len(torch.unique(words, dim=0)))
    clusters = KMeans(count, n_init=10, random_state=seed).fit(words.double().cpu().numpy())
    return torch.from_numpy(clusters.cluster_centers_.astype(np.float32)).to(words.device)


class SemanticKD:
    """Keeps the word vectors of the classes it has seen, and no image."""

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        self.config, self.trainer = config, trainer
        vectors = torch.from_numpy(class_vectors("semantic_kd", config.data.word_vectors, class_names))
        self._vectors = F.normalize(vectors).to(trainer.device)  # of classes to come too: see _words
        self.network = Learner(self.base_recipe(config), trainer)
        self._classes = 0
        self._centres = self._vectors[:1]  # (superclasses, d), until the base classes are known
        self._mapping = self._new_mapping()

    @staticmethod
    def base_recipe(config: Config) -> Config:
        return plain_recipe(config, "linear")

    def _new_mapping(self) -> SemanticMapping:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.train.seed)
            shape = self.network.backbone.feature_dim, self._vectors.shape[1], len(self._centres)
            return SemanticMapping(*shape).to(self.trainer.device)

    @property
    def _words(self) -> Tensor:
        """(classes seen so far, d)"""
        return self._vectors[: self._classes]

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.fit_base(base)
        self._classes = len(base.counts)
        self._centres = superclass_centres(self._words, self.config.train.seed)
        self._mapping = self._new_mapping()
        self._train(base, self.loss, EPOCHS, BATCH, RATE)

    def learn(self, new: Images) -> None:
        check_numbers(new, self._classes)
        old, old_words, settings = copy.deepcopy(self._mapping), self._words, self.config.incremental
        self._classes += len(new.counts)

        def loss(features: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                before = similarity(old(features)[0], old_words)
            return self.loss(features, labels, before)

        self._train(new, loss, settings.epochs, settings.batch, SESSION_RATE)

    def loss(self, features: Tensor, labels: Tensor, before: Tensor | None = None) -> Tensor:
        """The right word, and the right superclass to attend to. before: (n, old classes), the old scores."""
        mapped, attention = self._mapping(features)
        scores = similarity(mapped, self._words)
        superclass = torch.cdist(self._words, self._centres).argmin(1)
        value = F.cross_entropy(scores, labels) + F.cross_entropy(attention, superclass[labels])
        if before is not None:
            value = value + DISTILLATION * distillation(scores[:, : before.shape[1]], before)
        return value

    def _train(self, images: Images, loss: Loss, epochs: int, batch: int, rate: float) -> None:
        features, labels = self._features(images), torch.from_numpy(images.labels).to(self.trainer.device)
        generator = generator_of(self.config.train.seed, int(images.labels.min()))
        fit(
            self._mapping, lambda: (features, labels), loss, epochs, batch, rate, generator, self.trainer, "semantic_kd"
        )

    def _features(self, images: Images) -> Tensor:
        return standardised(self.network.features(images).to(self.trainer.device))

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        return similarity(self._mapping(self._features(images))[0], self._words).cpu()

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        return {}

    def memory(self) -> Memory:
        return Memory(floats=self._words.numel() + self._centres.numel())

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*, mapping.*, centres, classes"""
        mapping = {f"mapping.{name}": value.cpu().clone() for name, value in self._mapping.state_dict().items()}
        seen = {"centres": self._centres.cpu(), "classes": torch.tensor(self._classes)}
        return {**self.network.state(), **mapping, **seen}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
        self._classes, self._centres = int(state["classes"]), state["centres"].to(self.trainer.device)
        self._mapping = self._new_mapping()
        part = "mapping."
        weights = {name.removeprefix(part): value for name, value in state.items() if name.startswith(part)}
        load_state(self._mapping, weights, "the state")
