"""A loop around `step(batch) -> losses`: schedule, precision, metrics, checkpoints. Methods supply the step.

A step's randomness depends on the seed and the step's number alone, and so does the order of the images. That is why a
checkpoint needs no random state, and why a run that was stopped goes on to the same bits as one that was not.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from fscil.config import TrainConfig
from fscil.data.images import Images
from fscil.errors import TrainingError
from fscil.runtime.interrupts import stop_requests
from fscil.runtime.progress import ProgressBar
from fscil.training.checkpoints import Checkpoints
from fscil.training.context import Context
from fscil.training.run_folder import Run

CHECK_EVERY = 10  # steps between looks at the loss: each look makes the host wait for the device
PROBE_IMAGES = 16  # images in the batch that an estimate times
QUICK = 1.0  # seconds: a step that takes less is timed again
RISE = 0.25  # share of a one-cycle schedule in which the rate rises


@dataclass(frozen=True)
class Batch:
    """What a step gets. Pixels are on the device; the rest stays on the host, where random choices are made."""

    pixels: Tensor  # (n, H, W, 3) uint8, padded below and to the right
    sizes: Tensor  # (n, 2) true heights and widths
    labels: Tensor  # (n,) int64
    generator: Generator  # this step's own randomness
    progress: float  # share of the training that lies behind, 0 to 1


# The loss of a batch as parts to be added up. Each is passed backward before the next is computed, so that what the
# backward pass needs of two parts is never in memory at once.
Step: TypeAlias = Callable[[Batch], Iterable[Tensor]]


def learning_rate(settings: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """The rate of this step under the recipe's schedule."""
    if settings.schedule == "step":
        epoch = step // steps_per_epoch
        return settings.lr * settings.gamma ** sum(epoch >= drop for drop in settings.drops)
    share = (step + 1) / (settings.epochs * steps_per_epoch)
    if share < RISE:
        return settings.lr * share / RISE
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (share - RISE) / (1 - RISE)))


class Trainer:
    """Trains any network by any step, as the settings say; with a run folder it can be stopped and resumed."""

    def __init__(self, settings: TrainConfig, context: Context, run: Run | None = None) -> None:
        self.settings, self._device, self._quiet, self._run = settings, context.device, context.quiet, run
        self.seconds = 0.0  # spent on training what there is, also before it was stopped and resumed

    def steps_per_epoch(self, images: Images) -> int:
        """An incomplete last batch is left out; which images that concerns differs from epoch to epoch."""
        return max(1, len(images) // self.settings.batch)

    def _losses(self, step: Step, batch: Batch) -> Iterator[Tensor]:
        half = self._device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        parts: Iterator[Tensor] | None = None
        while True:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=half):  # and not around what is done with it
                parts = iter(step(batch)) if parts is None else parts
                loss = next(parts, None)
            if loss is None:
                return
            yield loss

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

    def estimate(self, network: nn.Module, images: Images, step: Step) -> float:
        """Seconds the whole training will take here, from timing a step or two; the network is left as it was."""
        network.to(self._device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        before = {name: value.clone() for name, value in network.state_dict().items()}
        # Of several classes, where the images are sorted by class: what a step costs may hang on that.
        order = np.random.default_rng(0).permutation(len(images))

        def timed(count: int, progress: float) -> float:
            began = time.perf_counter()
            self._backward(step, self._batch(images, order[:count], 0, progress)).item()
            return time.perf_counter() - began

        whole = min(self.settings.batch, len(images))
        probe = min(whole, PROBE_IMAGES)
        if timed(probe, 0.0) < QUICK:  # also warms up; quick enough to time a step at its true size
            probe = whole

        def warm(progress: float) -> float:
            """The first step of a shape also prepares for the others."""
            first = timed(probe, progress)
            return min(first, timed(probe, progress)) if first < QUICK else first

        seconds = (warm(0.0) + warm(1.0)) / 2 * whole / probe  # a late step may cost more than an early one
        network.load_state_dict(before)
        network.zero_grad(set_to_none=True)
        return seconds * self.settings.epochs * self.steps_per_epoch(images)

    def train(
        self,
        network: nn.Module,
        images: Images,
        step: Step,
        validate: Callable[[], float] | None = None,
    ) -> None:
        """Train network in place. validate, if given, scores it after each epoch; the best state is then the result."""
        settings, per_epoch = self.settings, self.steps_per_epoch(images)
        if len(images) < 2:
            raise TrainingError(f"training needs at least two images, there are {len(images)}. Add some.")
        network.to(self._device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        optimizer = self._optimizer(network)
        checkpoints = Checkpoints(self._run, _fingerprint(images), settings.checkpoint_minutes)
        first, self.seconds = checkpoints.restore(network, optimizer)
        best = checkpoints.load_best() if validate else None
        total = settings.epochs * per_epoch
        meter, note = _Meter(self._device), ""
        began = time.monotonic() - self.seconds
        with (
            self._log(first) as log,
            stop_requests() as stop,
            ProgressBar("training", total, first, self._quiet) as bar,
        ):
            for number, batch in self._batches(images, first, total):
                rate = learning_rate(settings, number, per_epoch)
                meter.add(self._update(optimizer, step, batch, rate), len(batch.labels))
                done = number + 1
                epoch_ended = done % per_epoch == 0
                self.seconds = time.monotonic() - began
                stopping = stop.is_set()  # read once: a request that comes later is for the next step
                saving = stopping or checkpoints.due
                if done % CHECK_EVERY == 0 or epoch_ended or saving:
                    loss, speed = meter.read()
                    # The last update has no loss to show for it yet, and must not spoil what is about to be kept.
                    if not math.isfinite(loss) or ((saving or done == total) and not _all_finite(network)):
                        raise self._diverged(loss, done, rate)
                    note = f"loss {loss:.3f}  rate {rate:.4g}  {speed:.0f} images/s"
                    log(done, epoch=done / per_epoch, loss=loss, rate=rate, images_per_second=round(speed, 1))
                bar.advance(1, note)
                if epoch_ended and validate:
                    score = validate()
                    log(done, validation=score)
                    if best is None or score > best.score:
                        best = checkpoints.save_best(network, score, done)
                if saving:
                    checkpoints.save(network, optimizer, done, self.seconds)
                if stopping:
                    raise KeyboardInterrupt
        if best:
            network.load_state_dict(best.state)

    def _optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        settings = self.settings
        return torch.optim.SGD(
            network.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov and settings.momentum > 0,
        )

    def _update(self, optimizer: torch.optim.Optimizer, step: Step, batch: Batch, rate: float) -> Tensor:
        """One step of the optimizer at this rate; returns the loss before it."""
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, batch)
        optimizer.step()
        return loss

    def _batch(self, images: Images, positions: NDArray[np.int64], number: int, progress: float) -> Batch:
        pixels, sizes = images.batch(positions)
        seed = int(np.random.SeedSequence([self.settings.seed, number]).generate_state(1, np.uint64)[0] >> 1)
        return Batch(
            torch.from_numpy(pixels).to(self._device, non_blocking=True),
            torch.from_numpy(sizes),
            torch.from_numpy(images.labels[positions]),
            torch.Generator().manual_seed(seed),
            progress,
        )

    def _batches(self, images: Images, first: int, total: int) -> Iterator[tuple[int, Batch]]:
        """Steps first..total-1, each batch fetched while the one before is being used."""
        per_epoch, size = self.steps_per_epoch(images), self.settings.batch

        def fetch(number: int) -> Batch:
            epoch, place = divmod(number, per_epoch)
            order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(images))
            return self._batch(images, order[place * size : (place + 1) * size], number, number / total)

        with ThreadPoolExecutor(1) as pool:
            upcoming = pool.submit(fetch, first) if first < total else None
            for number in range(first, total):
                assert upcoming is not None
                batch = upcoming.result()
                upcoming = pool.submit(fetch, number + 1) if number + 1 < total else None
                yield number, batch

    @contextmanager
    def _log(self, first: int) -> Iterator[Callable[..., None]]:
        """A function that writes values at a step to the run folder, and to TensorBoard where that is installed."""
        run = self._run
        if run is None:
            yield lambda step, **values: None
            return
        with run.board(first) as board:

            def log(step: int, **values: float) -> None:
                run.log(step=step, **values)
                for name, value in values.items() if board else ():
                    board.add_scalar(name, value, step)

            yield log

    def _diverged(self, loss: float, step: int, rate: float) -> TrainingError:
        what = "the weights became infinite" if math.isfinite(loss) else f"the loss became {loss}"
        kept = ""
        if self._run and self._run.has("checkpoint"):
            kept = f" The checkpoint in {self._run.folder} is from before that."
        return TrainingError(
            f"{what} by step {step}, at learning rate {rate:.4g}: training diverged.{kept} "
            f"Start anew with a lower train.lr."
        )


def _fingerprint(images: Images) -> str:
    """Changes with the number, the names, the order and the labels of the images."""
    names = "\n".join(images.name(position) for position in range(len(images)))
    return hashlib.sha256(names.encode(errors="surrogateescape") + images.labels.tobytes()).hexdigest()


def _all_finite(network: nn.Module) -> bool:
    return all(bool(value.isfinite().all()) for value in network.state_dict().values())


class _Meter:
    """Mean loss and speed since the last look; adding does not wait for the device."""

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
        mean = self._sum.item() / max(self._steps, 1)
        speed = self._images / max(time.monotonic() - self._began, 1e-9)
        self._reset()
        return mean, speed
