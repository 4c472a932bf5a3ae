"""The network that base training trains, and the objective: a loss that brings views and modules of its own."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from fscil.config import Config
from fscil.models import Backbone, CosineHead, Projection
from fscil.runtime.distributed import gather_rows
from fscil.runtime.registry import Registry
from fscil.training.batches import Batch


class Objective(nn.Module, ABC):
    """What base training minimises instead of the classification that the settings `loss` describe.

    It is a module of the network in training: its parameters are trained, and its parameters and buffers (a queue, a
    momentum encoder) are in the checkpoint. Whatever changes from step to step must be one of these, and all randomness
    must come from the batch's generator, or a resumed training would not reach the same bits.

    Under torchrun a process has the pixels of its part of a batch alone. An objective that sets `divisible` passes that
    part through the backbone, by `encoded`, and computes its loss of the features of the whole batch in every process.
    """

    divisible: ClassVar[bool] = False

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        """backbone: the one to be trained, to be measured or copied; it must not become a part of the objective."""
        super().__init__()
        self.recipe, self.classes = recipe, classes

    @abstractmethod
    def losses(self, network: "BaseNetwork", batch: Batch) -> Iterable[Tensor]:
        """The loss of a batch as parts to be added up, each passed backward before the next is computed."""

    @staticmethod
    def encoded(encoder: nn.Module, views: Tensor, batch: Batch) -> Tensor:
        """Views of this process's part of the batch (V, k, 3, h, w) -> features of the whole (V n, d), view by view."""
        rows = views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return gather_rows(encoder(rows).unflatten(0, views.shape[:2]), len(batch.labels)).flatten(0, 1)

    def extras(self) -> dict[str, Tensor]:
        """What the method needs of it when training has ended: saved with the weights, `TrainedNetwork.extras`."""
        return {}

    @classmethod
    def passes(cls, recipe: Config) -> float:
        """How many images pass a network for each image of a batch; by default as many as there are views."""
        return recipe.views.count


# Subclasses of Objective, named by the setting train.objective. Other packages add theirs by an entry point in
# "fscil.objectives", a plugin by @OBJECTIVES.register("name").
OBJECTIVES: Registry[type[Objective]] = Registry("objective", "fscil.objectives", {})


class BaseNetwork(nn.Module):
    """Backbone, projection and classifier as they are trained together, and the objective where the recipe has one."""

    def __init__(self, backbone: Backbone, config: Config, outputs: int) -> None:
        super().__init__()
        hidden, objective = config.model.projection, config.train.objective
        self.backbone = backbone
        self.projection = Projection(backbone.feature_dim, hidden, hidden) if hidden else nn.Identity()
        self.head = new_head(config, hidden or backbone.feature_dim, outputs)
        self.objective = OBJECTIVES[objective](config, backbone, outputs) if objective else None

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, outputs)"""
        scores: Tensor = self.head(self.projection(self.backbone(images)))
        return scores


def new_head(recipe: Config, inputs: int, outputs: int) -> nn.Linear:
    return CosineHead(inputs, outputs) if recipe.model.head == "cosine" else nn.Linear(inputs, outputs)


def passes_per_image(recipe: Config) -> float:
    """How many images pass a network in training for each image of a batch: its views, mixtures, or what else."""
    if recipe.train.objective:
        return OBJECTIVES[recipe.train.objective].passes(recipe)
    return recipe.views.count * (1 + recipe.mixing.repeats * (1 - recipe.mixing.start))
