"""Training the network on a session's few images, as the systems before ALICE do.

Common to them in the comparison of Tao et al. (CVPR 2020): Nesterov SGD, weight decay 5e-4, some hundred steps, each
on a batch of all the new images. BatchNorm keeps the statistics of the base classes: five images are too few for it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import TrainingError
from fscil.runtime.interrupts import stop_requests
from fscil.runtime.progress import ProgressBar
from fscil.training.build import preprocess_of, views_of
from fscil.training.context import Context

Loss = Callable[[Tensor, Tensor], Tensor]  # (n, 3, h, w) normalised views, (n,) labels -> scalar

WEIGHT_DECAY = 5e-4
MAX_GRAD_NORM = 1.0  # gradients are clipped: with fixed statistics, BatchNorm does not bound the size of a step
MOMENTUM = 0.9


@dataclass(frozen=True)
class Descent:
    """How SGD descends; by default as in that comparison."""

    weight_decay: float = WEIGHT_DECAY
    dampening: float = 0.0  # of the momentum, which is Nesterov's where there is none
    largest_gradient: float = MAX_GRAD_NORM  # its norm, to which longer ones are shortened
    warm_up: float = 0.0  # share of the steps in which the rate rises
    decays: bool = True  # whether it falls along half a cosine after that

    def factor(self, step: int, steps: int) -> float:
        """Of the rate, in step 0, 1, … of so many."""
        rising = round(self.warm_up * steps)
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising))) if self.decays else 1.0


USUAL = Descent()


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
    descent: Descent = USUAL,
    augmented: bool = True,
    count: int = 1,
) -> None:
    """Minimise the loss on images.

    recipe: of base training, whose views are those of the sessions too. seed: of the session, beside the recipe's.
    augmented: False for images as they are in the test. count: of views, which the loss gets one after the other, all
    of the first, then all of the second.
    """
    views, preprocess = views_of(replace(recipe, views=replace(recipe.views, count=count))), preprocess_of(recipe)
    dampening, decay = descent.dampening, descent.weight_decay
    optimizer = torch.optim.SGD(parameters, lr, MOMENTUM, dampening, decay, nesterov=not dampening)
    random = np.random.default_rng([recipe.train.seed, seed])
    generator = torch.Generator().manual_seed(int(random.integers(2**62)))
    batches = _batches(random, len(images), recipe.incremental.batch)
    with stop_requests() as stop, ProgressBar(what, steps, quiet=context.quiet) as bar:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = lr * descent.factor(step, steps)
            chosen = next(batches)
            pixels, sizes = map(torch.from_numpy, images.batch(chosen))
            pixels = pixels.to(context.device)
            view = views(pixels, sizes, generator).flatten(0, 1) if augmented else preprocess(pixels, sizes)
            view = view.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            labels = torch.from_numpy(images.labels[chosen]).to(context.device)
            value = loss(view, labels.repeat(len(view) // len(labels)))
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, descent.largest_gradient)
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
