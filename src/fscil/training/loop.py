"""The training loop around `step(batch) -> losses`: schedule, precision, metrics, checkpoints.

Under torchrun all processes train one network together: each takes its part of every batch, process 0 has the run
folder, and all of them decide together when to save and when to stop.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fscil.config import TrainConfig
from fscil.data.images import Images
from fscil.errors import TrainingError
from fscil.runtime.distributed import all_reduce_max, broadcast_from_main, raise_in_all, world_size
from fscil.runtime.interrupts import stop_requests
from fscil.runtime.progress import ProgressBar
from fscil.training.batches import Batch, Batches, fingerprint, steps_per_epoch
from fscil.training.checkpoints import Checkpoints
from fscil.training.context import Context
from fscil.training.metrics_log import Meter, metrics_log
from fscil.training.optimizers import OPTIMIZERS
from fscil.training.parallel import Next, batchnorm_of_all, copy_training_from_main, next_part
from fscil.training.run_folder import Run

__all__ = ["Batch", "Step", "Trainer", "learning_rate"]

CHECK_EVERY = 10  # steps between two readings of the loss: each makes the host wait for the device
PROBE_IMAGES = 16  # images in the batch that an estimate times first
QUICK = 1.0  # seconds: a step that takes less is timed again
TIMED_STEPS = 5  # at most, of which the quickest counts
WARMUP = 0.25  # fraction of a one-cycle schedule in which the rate rises

# The loss of a batch as parts to be added up. Each is passed backward before the next is computed, so that what the
# backward pass needs of two parts is never in memory at once.
Step: TypeAlias = Callable[[Batch], Iterable[Tensor]]


def learning_rate(settings: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """The learning rate of this step under the recipe's schedule."""
    if settings.schedule == "step":
        epoch = step // steps_per_epoch
        return settings.lr * settings.gamma ** sum(epoch >= drop for drop in settings.drops)
    progress = (step + 1) / (settings.epochs * steps_per_epoch)
    if progress < WARMUP:
        return settings.lr * progress / WARMUP
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))


def _has_bfloat16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@dataclass(frozen=True)
class _AfterStep:
    """Where training stands after a step, and what that calls for."""

    done: int  # steps
    epochs: float
    epoch_ended: bool
    complete: bool  # it was the last step
    stopped: bool  # by the user
    due: bool  # a checkpoint is
    late: bool  # the deadline has passed

    @property
    def ends(self) -> bool:
        return self.late or self.complete

    @property
    def saves(self) -> bool:
        return self.stopped or self.due

    @property
    def measures(self) -> bool:
        return self.done % CHECK_EVERY == 0 or self.epoch_ended or self.saves or self.ends

    @property
    def validates(self) -> bool:
        return self.epoch_ended or (self.ends and not self.stopped)


class Trainer:
    """Trains any network by any step, as the settings say; with a run folder it can be stopped and resumed."""

    def __init__(
        self, settings: TrainConfig, context: Context, run: Run | None = None, deadline: float | None = None
    ) -> None:
        """deadline: by time.monotonic(); training ends with the first step after it."""
        if settings.precision == "bf16" and context.device.type == "cuda" and not _has_bfloat16():
            raise TrainingError('train.precision = "bf16": this GPU has no bfloat16. Use fp32.')
        self.settings, self._device, self._quiet, self._run = settings, context.device, context.quiet, run
        self._next: Next  # computes a part of a step's loss
        self._deadline = math.inf if deadline is None else deadline
        self.stopped_after: float | None = None  # epochs, where the deadline ended it
        self.seconds = 0.0  # spent on training so far, also before it was stopped and resumed

    def steps_per_epoch(self, images: Images) -> int:
        return steps_per_epoch(len(images), self.settings.batch)

    def train(
        self,
        network: nn.Module,
        images: Images,
        step: Step,
        validate: Callable[[], float] | None = None,
    ) -> None:
        """Train network in place. validate, if given, scores it after each epoch; the best state is then the result."""
        if len(images) < 2:
            raise TrainingError(f"training needs at least two images, there are {len(images)}. Add some.")
        settings, batches = self.settings, Batches(images, self.settings, self._device)
        self._prepare(network)
        optimizer = self._optimizer(network)
        checkpoints = Checkpoints(self._run, fingerprint(images), settings.checkpoint_minutes)
        with raise_in_all():
            restored = checkpoints.restore(network, optimizer)
        first, self.seconds = copy_training_from_main(network, optimizer, *restored)
        self._next = next_part(network)
        meter, began = Meter(self._device), time.monotonic() - self.seconds
        with (
            metrics_log(self._run, first) as log,
            stop_requests() as stop,
            ProgressBar("training", batches.total, first, self._quiet) as bar,
        ):
            for number, batch in batches.from_step(first):
                rate = learning_rate(settings, number, batches.per_epoch)
                meter.add(self._update(optimizer, step, batch, rate), len(batch.labels))
                self.seconds = time.monotonic() - began
                after = self._after_step(number + 1, batches, stop.is_set(), checkpoints.due)
                bar.advance(1, self._measure(after, meter, network, rate, log) if after.measures else None)
                if validate and after.validates:
                    score = validate()
                    log(after.done, validation=score)
                    checkpoints.keep_if_best(network, score, after.done)
                if after.saves:
                    checkpoints.save(network, optimizer, after.done, self.seconds)
                if after.stopped:
                    raise KeyboardInterrupt
                if after.late and not after.complete:
                    self.stopped_after = after.epochs
                    break
        if validate:
            checkpoints.load_best(network)
            broadcast_from_main(network.state_dict().values())  # the others may know no best state from before a stop

    def _after_step(self, done: int, batches: Batches, stopped: bool, due: bool) -> "_AfterStep":
        """What follows a step, which all processes agree on. stopped: by the user. due: a checkpoint is.

        Both are read once: a request that comes later is for the next step.
        """
        any_stopped, any_due, any_late = all_reduce_max(stopped, due, time.monotonic() >= self._deadline)
        epochs, epoch_ended = done / batches.per_epoch, done % batches.per_epoch == 0
        complete, asked = done == batches.total, (bool(any_stopped), bool(any_due), bool(any_late))
        return _AfterStep(done, epochs, epoch_ended, complete, *asked)

    def _measure(
        self, after: "_AfterStep", meter: Meter, network: nn.Module, rate: float, log: Callable[..., None]
    ) -> str:
        """Log the loss since the last measurement, and raise if training has diverged; returns a text about it."""
        loss, speed = meter.read()
        with raise_in_all():
            self._require_finite(loss, network if after.saves or after.ends else None, after.done, rate)
        log(after.done, epoch=after.epochs, loss=loss, rate=rate, images_per_second=round(speed, 1))
        return f"loss {loss:.3f}  rate {rate:.4g}  {speed:.0f} images/s"

    def _prepare(self, network: nn.Module) -> None:
        """On the device, in training mode; BatchNorm of images in evaluation mode where the settings freeze it."""
        network.to(self._device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        if self.settings.freeze_batchnorm:
            for part in network.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.eval()

    def _optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.settings.optimizer](network.parameters(), self.settings)

    def _update(self, optimizer: torch.optim.Optimizer, step: Step, batch: Batch, rate: float) -> Tensor:
        """One step of the optimizer at this rate; returns the loss before it."""
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, batch)
        optimizer.step()
        return loss

    def _backward(self, step: Step, batch: Batch) -> Tensor:
        """The loss of a batch, its gradients added to the network's."""
        total = torch.zeros((), device=self._device)
        try:
            for loss in self._losses(step, batch):
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on a CPU only the text tells
            if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
                raise TrainingError(
                    f"no memory left for a step of {len(batch.labels)} images. Use a smaller train.batch "
                    f"(now {self.settings.batch}), or smaller images (views.size)."
                ) from error
            raise
        return total

    def _losses(self, step: Step, batch: Batch) -> Iterator[Tensor]:
        """The step's losses, in the precision of the settings; the caller's backward pass follows each operation's."""
        half = self.settings.precision == "bf16"
        parts: Iterator[Tensor] | None = None
        while True:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=half), batchnorm_of_all():
                parts = iter(step(batch)) if parts is None else parts
                loss = self._next(parts)
            if loss is None:
                return
            yield loss

    def _require_finite(self, loss: float, network: nn.Module | None, step: int, rate: float) -> None:
        """network: to be checked too, before it is saved: the last update is not in the loss yet."""
        if not math.isfinite(loss):
            what = f"the loss became {loss}"
        elif network and not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
            what = "the weights became infinite"
        else:
            return
        kept = ""
        if self._run and self._run.has("checkpoint"):
            kept = f" The checkpoint in {self._run.folder} is from before that."
        raise TrainingError(
            f"{what} by step {step}, at learning rate {rate:.4g}: training diverged.{kept} "
            f"Start anew with a lower train.lr."
        )

    def estimate(self, network: nn.Module, images: Images, step: Step) -> float:
        """Seconds that the whole training will take, by timing a few steps; the network is left as it was."""
        self._prepare(network)
        self._next = next_part(network)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        batches, optimizer = Batches(images, self.settings, self._device), self._optimizer(network)
        # Shuffled: images may be sorted by class, and the cost of a step may depend on how many classes a batch has.
        order = np.random.default_rng(0).permutation(len(images))

        def timed(count: int, progress: float) -> float:
            began = time.perf_counter()
            self._update(optimizer, step, batches.of_images(order[:count], 0, progress), 0.0).item()
            return all_reduce_max(time.perf_counter() - began)[0]

        def quickest(count: int, progress: float) -> float:
            """Of a few: the first step of a shape is slower than those after it, and other programs disturb some."""
            times = [timed(count, progress) for _ in range(2)]
            while len(times) < TIMED_STEPS and sum(times) < QUICK:
                times.append(timed(count, progress))
            return min(times)

        whole = min(self.settings.batch, len(images))
        probe = min(whole, max(PROBE_IMAGES, world_size()))
        if quickest(probe, 0.0) < QUICK:  # quick enough to time a step at its true size
            probe = whole
        # A late step may cost more than an early one.
        seconds = (quickest(probe, 0.0) + quickest(probe, 1.0)) / 2 * whole / probe
        network.load_state_dict(before)
        network.zero_grad(set_to_none=True)
        return seconds * batches.total
