"""Methods that train their network in every session: how new classes start, what is trained, how long and how fast."""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.growing_network import NetworkMethod
from fscil.methods.toolkit.imprinting import FeatureMoments
from fscil.methods.toolkit.session_settings import SessionSettings
from fscil.methods.toolkit.train_on_images import WEIGHT_DECAY, Descent, Loss, train_on_images
from fscil.models import last_block
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context

Trainable: TypeAlias = Literal["all", "last_block", "head"]

PRETRAINED_LR = 0.1  # times the rate where the network began pretrained: Tao et al. have 0.01 on CUB200, 0.1 elsewhere


class SessionTrainingMethod(SessionSettings, NetworkMethod):
    """Trains a part of its network. `incremental.trainable` replaces the class attribute where it is given."""

    trainable: ClassVar[Trainable] = "last_block"  # "last_block" and "all" include the classifier
    weight_decay: ClassVar[float] = WEIGHT_DECAY
    augmented: ClassVar[bool] = True  # whether the images of a session are

    @property
    def lr(self) -> float:
        model = self.config.model
        pretrained = self.config.incremental.lr is None and (model.init == "pretrained" or model.weights)
        return PRETRAINED_LR * super().lr if pretrained else super().lr

    def trained_backbone(self) -> list[nn.Parameter]:
        """The parameters of the backbone that a session trains."""
        given = self.config.incremental.trainable
        wanted = self.trainable if given == "auto" else given
        if wanted == "head":
            return []
        return last_block(self.network.backbone) if wanted == "last_block" else list(self.network.backbone.parameters())

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
        if not trained:
            return
        self.network.backbone.requires_grad_(False)  # no gradients for what is not trained: they cost time
        for parameter in backbone:
            parameter.requires_grad_(True)
        rate = self.lr if lr is None else lr
        try:
            train_on_images(
                trained,
                images,
                loss,
                self.network.recipe,
                self.context,
                self.title,
                seed,
                rate,
                self.steps,
                descent=Descent(weight_decay=self.weight_decay),
                augmented=self.augmented,
            )
        finally:
            self.network.backbone.requires_grad_(True)
            self.network.weights_changed()


class ImprintingMethod(SessionTrainingMethod):
    """Keeps mean and covariance of the base images' normalised features, for the start of new class vectors."""

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        dim = self.network.backbone.feature_dim
        self.base = FeatureMoments(torch.zeros(dim), torch.zeros(dim, dim))

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.base = FeatureMoments.of(self.network.features(base))

    def grow(self, new: Images) -> int:
        """Add an output for each new class; returns the first one's number."""
        return self.network.grow(new, self.base)

    def memory(self) -> Memory:
        return Memory(floats=self.base.mean.numel() + self.base.covariance.numel())

    def own_state(self) -> dict[str, Tensor]:
        """base.mean, base.covariance"""
        return {"base.mean": self.base.mean.clone(), "base.covariance": self.base.covariance.clone()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.base = FeatureMoments(state["base.mean"], state["base.covariance"])
