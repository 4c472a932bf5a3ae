"""Training the network on a session's few images, as the systems before ALICE do.

Common to them in the comparison of Tao et al. (CVPR 2020): Nesterov SGD, weight decay 5e-4, some hundred steps, each
on a batch of all the new images. BatchNorm keeps the statistics of the base classes: five images are too few for it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import TrainingError
from fscil.runtime.interrupts import stop_requests
from fscil.runtime.progress import ProgressBar
from fscil.training.build import views_of
from fscil.training.context import Context

Loss = Callable[[Tensor, Tensor], Tensor]  # (n, 3, h, w) normalised views, (n,) labels -> scalar

MAX_GRAD_NORM = 1.0  # gradients are clipped: with fixed statistics, BatchNorm does not bound the size of a step


def train_on_images(
    parameters: Sequence[nn.Parameter],
    images: Images,
    loss: Loss,
    recipe: Config,
    context: Context,
    what: str,
    seed: int,
    lr: float,
    steps: int,
) -> None:
    """Minimise the loss on augmented images, one view each, with cosine decay of the learning rate.

    recipe: of base training, whose views are those of the sessions too. seed: of the session, beside the recipe's.
    """
    views = views_of(replace(recipe, views=replace(recipe.views, count=1)))
    optimizer = torch.optim.SGD(parameters, lr, 0.9, weight_decay=5e-4, nesterov=True)
    random = np.random.default_rng([recipe.train.seed, seed])
    generator = torch.Generator().manual_seed(int(random.integers(2**62)))
    batches = _batches(random, len(images), recipe.incremental.batch)
    with stop_requests() as stop, ProgressBar(what, steps, quiet=context.quiet) as bar:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            chosen = next(batches)
            pixels, sizes = images.batch(chosen)
            view = views(torch.from_numpy(pixels).to(context.device), torch.from_numpy(sizes), generator)[0]
            view = view.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            value = loss(view, torch.from_numpy(images.labels[chosen]).to(context.device))
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
            if stop.is_set():
                raise KeyboardInterrupt
            bar.advance(1)
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise TrainingError(
            f"{what}: the weights became infinite while training on {len(images)} images at learning rate "
            f"{lr:.4g}. Use a lower incremental.lr."
        )


def _batches(random: np.random.Generator, images: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Positions of the images of each step, without end: every image once before any is repeated."""
    while True:
        order = random.permutation(images)
        for start in range(0, images, size):
            yield order[start : start + size]
