"""Optimisers by name, for the setting train.optimizer; a plugin adds its own by @OPTIMIZERS.register("name")."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import nn

from fscil.config import TrainConfig
from fscil.runtime.registry import Registry

MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter], TrainConfig], torch.optim.Optimizer]


def sgd(parameters: Iterable[nn.Parameter], settings: TrainConfig) -> torch.optim.Optimizer:
    """The paper's: with momentum and weight decay."""
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov and settings.momentum > 0,
    )


def adamw(parameters: Iterable[nn.Parameter], settings: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019); train.momentum is its first beta."""
    betas = (settings.momentum, 0.999)
    return torch.optim.AdamW(parameters, lr=settings.lr, betas=betas, weight_decay=settings.weight_decay)


# Functions (parameters, settings) -> optimiser. The schedule sets the rate of all its groups at every step, and
# checkpoints hold the tensors of its state.
OPTIMIZERS: Registry[MakeOptimizer] = Registry("optimizer", "fscil.optimizers", {"sgd": sgd, "adamw": adamw})
