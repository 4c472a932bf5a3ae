"""Training small modules on features that were computed once: AdamW or SGD, cosine decay of the learning rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.runtime.interrupts import stop_requests
from fscil.runtime.progress import ProgressBar
from fscil.training.context import Context

WEIGHT_DECAY = 5e-4
SESSION_STEPS = 100  # as `incremental.steps` has by default; on features they cost very little

Examples = Callable[[], tuple[Tensor, Tensor]]  # called once an epoch: (n, d) features, (n,) labels
Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch of them


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how fast."""

    epochs: int
    batch: int
    rate: float  # at the beginning
    momentum: float | None = None  # of SGD; none: AdamW
    largest_gradient: float = math.inf  # its norm, to which longer ones are shortened


def standardised(features: Tensor) -> Tensor:
    """(n, d), each feature with mean 0 and variance 1 over its dimensions, whatever the scale of its backbone."""
    return F.layer_norm(features, features.shape[1:])


def generator_of(seed: int, first_class: int) -> torch.Generator:
    """A random generator for the session that begins with this class."""
    return torch.Generator().manual_seed(int(np.random.default_rng([seed, first_class]).integers(2**62)))


def train_on_features(
    part: nn.Module,
    examples: Examples,
    loss: Loss,
    schedule: Schedule,
    generator: torch.Generator,
    context: Context,
    what: str,
) -> None:
    """Minimise the loss over mini-batches in the generator's order; the examples may differ from epoch to epoch."""
    optimizer = _optimizer(part, schedule)
    with stop_requests() as stop, ProgressBar(what, schedule.epochs, quiet=context.quiet) as bar:
        for epoch in range(schedule.epochs):
            decay = 0.5 * (1 + math.cos(math.pi * epoch / schedule.epochs))
            optimizer.param_groups[0]["lr"] = schedule.rate * decay
            features, labels = examples()
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            for chosen in torch.split(order, schedule.batch):
                optimizer.zero_grad(set_to_none=True)
                value = loss(features[chosen], labels[chosen])
                value.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(part.parameters(), schedule.largest_gradient)
                optimizer.step()
                if stop.is_set():
                    raise KeyboardInterrupt
            bar.advance(1)


def _optimizer(part: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    if schedule.momentum is None:
        return torch.optim.AdamW(part.parameters(), schedule.rate, weight_decay=WEIGHT_DECAY)
    return torch.optim.SGD(part.parameters(), schedule.rate, schedule.momentum, weight_decay=WEIGHT_DECAY)
