"""Methods that train their network in every session: how new classes start, what is trained, how long and how fast."""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.growing_network import NetworkMethod
from fscil.methods.toolkit.train_on_images import Loss, train_on_images
from fscil.models import last_block
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context

Trainable: TypeAlias = Literal["all", "last_block", "head"]


class SessionTrainingMethod(NetworkMethod):
    """Keeps the mean normalised feature of the base images, which the class vectors of new classes start relative to.

    The settings `incremental.lr`, `incremental.steps` and `incremental.trainable` replace the class attributes where
    they are given.
    """

    trains_in_sessions = True
    trainable: ClassVar[Trainable] = "last_block"  # "last_block" and "all" include the classifier
    session_lr: ClassVar[float] = 0.1
    session_steps: ClassVar[int] = 100

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.centre = torch.zeros(self.network.backbone.feature_dim)  # (d,) mean normalised feature of the base images

    @property
    def lr(self) -> float:
        given = self.config.incremental.lr
        return self.session_lr if given is None else given

    @property
    def steps(self) -> int:
        given = self.config.incremental.steps
        return self.session_steps if given is None else given

    def trained_backbone(self) -> list[nn.Parameter]:
        """The parameters of the backbone that a session trains."""
        given = self.config.incremental.trainable
        wanted = self.trainable if given == "auto" else given
        if wanted == "head":
            return []
        return last_block(self.network.backbone) if wanted == "last_block" else list(self.network.backbone.parameters())

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.centre = F.normalize(self.network.features(base)).mean(0)

    def grow(self, new: Images) -> int:
        """Add an output for each new class; returns the first one's number."""
        return self.network.grow(new, self.centre)

    def train(
        self,
        images: Images,
        loss: Loss,
        seed: int,
        heads: Sequence[nn.Parameter] | None = None,
        lr: float | None = None,
    ) -> None:
        """Minimise the loss on a session's images. heads: trained in place of the classifier. lr: in place of the
        method's.
        """
        backbone = self.trained_backbone()
        trained = [*backbone, *(self.network.head.parameters() if heads is None else heads)]
        self.network.backbone.requires_grad_(False)  # no gradients for what is not trained: they cost time
        for parameter in backbone:
            parameter.requires_grad_(True)
        rate = self.lr if lr is None else lr
        try:
            train_on_images(
                trained, images, loss, self.network.recipe, self.context, self.title, seed, rate, self.steps
            )
        finally:
            self.network.backbone.requires_grad_(True)
            self.network.weights_changed()

    def memory(self) -> Memory:
        return Memory(floats=self.centre.numel())

    def own_state(self) -> dict[str, Tensor]:
        """centre"""
        return {"centre": self.centre.clone()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.centre = state["centre"]
