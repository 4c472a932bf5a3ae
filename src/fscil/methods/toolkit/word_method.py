"""Methods that use the meaning of class names: features are mapped into word space, where a class is its vector."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.data.word_vectors import check_unchanged, class_vectors
from fscil.gallery import cosine_scores
from fscil.methods.toolkit.growing_network import NetworkMethod
from fscil.methods.toolkit.train_on_features import Examples, Loss, Schedule, standardised, train_on_features
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context

SCALE = 16.0  # of the cosines in word space


def similarity(mapped: Tensor, words: Tensor) -> Tensor:
    """(n, word_dim) features mapped into word space, (classes, word_dim) word vectors -> (n, classes)"""
    return SCALE * cosine_scores(mapped, words)


class WordMethod(NetworkMethod):
    """Has the word vectors of all classes, and uses those of the classes seen so far."""

    needs_words = True

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        vectors = torch.from_numpy(class_vectors(self.title, config.data.word_vectors, class_names))
        self._vectors = F.normalize(vectors).to(context.device)  # (all classes, word_dim)
        self.classes = 0  # seen so far

    @property
    def words(self) -> Tensor:
        """(classes seen so far, word_dim)"""
        return self._vectors[: self.classes]

    @property
    def word_dim(self) -> int:
        return self._vectors.shape[1]

    def features(self, images: Images) -> Tensor:
        """(n, d) on the device, each standardised."""
        return standardised(self.network.features(images).to(self.context.device))

    def train_part(
        self, part: nn.Module, examples: Examples, loss: Loss, schedule: Schedule, generator: Generator
    ) -> None:
        """Minimise the loss on features; the backbone stays as base training left it."""
        train_on_features(part, examples, loss, schedule, generator, self.context, self.title)

    def own_state(self) -> dict[str, Tensor]:
        """words"""
        return {"words": self.words.cpu().clone()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.classes = len(state["words"])
        check_unchanged(state["words"].numpy(), self.words.cpu().numpy())
