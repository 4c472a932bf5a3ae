"""Metrics of a running training: mean loss and speed, written to the run folder, to TensorBoard and to wandb."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fscil.runtime.distributed import all_reduce_mean
from fscil.training.run_folder import Run
from fscil.training.wandb_log import wandb_run


class Meter:
    """Mean loss and speed since the last reading. Adding does not make the host wait for the device, reading does."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), device=device)
        self._reset()

    def _reset(self) -> None:
        self._sum.zero_()
        self._steps, self._images, self._began = 0, 0, time.monotonic()

    def add(self, loss: Tensor, images: int) -> None:
        self._sum += loss.detach()
        self._steps += 1
        self._images += images

    def read(self) -> tuple[float, float]:
        """The mean loss, and images per second, of all processes."""
        mean = all_reduce_mean(self._sum).item() / max(self._steps, 1)
        speed = self._images / max(time.monotonic() - self._began, 1e-9)
        self._reset()
        return mean, speed


@contextmanager
def metrics_log(run: Run | None, first: int) -> Iterator[Callable[..., None]]:
    """A function `log(step, **values)`; without a run folder it does nothing. first: steps done already."""
    if run is None:
        yield lambda step, **values: None
        return
    with run.board(first) as board, wandb_run(run) as tracker:

        def log(step: int, **values: float) -> None:
            run.log(step=step, **values)
            for name, value in values.items() if board else ():
                board.add_scalar(name, value, step)
            if tracker:
                tracker.log(values, step=step)

        yield log
