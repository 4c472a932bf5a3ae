"""Training small parts of a method on features that were computed once: Adam, the rate along half a cosine."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.runtime.interrupts import stop_requests
from fscil.runtime.progress import ProgressBar
from fscil.training.context import Context

SESSION_STEPS = 100  # as the study of the older systems has them; on features they cost next to nothing

Examples = Callable[[], tuple[Tensor, Tensor]]  # asked once an epoch: (n, d) features, (n,) labels
Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch of them


def standardised(features: Tensor) -> Tensor:
    """(n, d), each feature with mean 0 and variance 1 over its d numbers, whatever the scale of its backbone."""
    return F.layer_norm(features, features.shape[1:])


def generator_of(seed: int, session: int) -> torch.Generator:
    """Randomness that depends on the seed and on the session's first class alone."""
    return torch.Generator().manual_seed(int(np.random.default_rng([seed, session]).integers(2**62)))


def train_on_features(
    part: nn.Module,
    examples: Examples,
    loss: Loss,
    epochs: int,
    batch: int,
    rate: float,
    generator: torch.Generator,
    context: Context,
    what: str,
) -> None:
    """Lower the loss over mini-batches in the generator's order; the examples may be others in each epoch."""
    optimizer = torch.optim.AdamW(part.parameters(), rate, weight_decay=5e-4)
    with stop_requests() as stop, ProgressBar(what, epochs, quiet=context.quiet) as bar:
        for epoch in range(epochs):
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
            features, labels = examples()
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                optimizer.zero_grad(set_to_none=True)
                value = loss(features[chosen], labels[chosen])
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if stop.is_set():
                    raise KeyboardInterrupt
            bar.advance(1)
