"""The batches of a training: which images a step gets, and the random generator it draws from.

Both depend on the seed and the step's number alone. That is why a checkpoint needs no random state, and why a run that
was stopped and resumed gives the same bits as one that was not.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from fscil.augment import ALL
from fscil.config import TrainConfig
from fscil.data.images import Images
from fscil.errors import TrainingError
from fscil.runtime.distributed import gather_rows, share, world_size


@dataclass(frozen=True)
class Batch:
    """What a step gets. Pixels are on the device; the rest stays on the host, where random choices are made.

    Under torchrun each process has the pixels of its part of the batch. Sizes and labels are those of the whole batch,
    so that the random numbers of all of it can be drawn.
    """

    pixels: Tensor  # (n, H, W, 3) uint8, padded below and to the right
    sizes: Tensor  # (n, 2) true heights and widths
    labels: Tensor  # (n,) int64
    generator: Generator  # this step's own
    progress: float  # fraction of the training that has been done, 0 to 1
    part: slice = field(default_factory=lambda: ALL)  # rows of the batch whose pixels are here


def steps_per_epoch(images: int, batch: int) -> int:
    """An incomplete last batch is left out; which images that concerns differs from epoch to epoch."""
    return max(1, images // batch)


class Batches:
    """The batches of all steps of a training."""

    def __init__(self, images: Images, settings: TrainConfig, device: torch.device) -> None:
        self._images, self._settings, self._device = images, settings, device
        smallest = min(len(images), settings.batch)
        if smallest < world_size():
            raise TrainingError(
                f"a batch of {smallest} images cannot be divided among {world_size()} processes. Start fewer with "
                f"torchrun, or set a larger train.batch."
            )
        self.per_epoch = steps_per_epoch(len(images), settings.batch)
        self.total = settings.epochs * self.per_epoch

    def of_step(self, step: int) -> Batch:
        return _with_all_sizes(self._read_step(step))

    def of_images(self, positions: NDArray[np.int64], step: int, progress: float) -> Batch:
        """A batch of these images, with the generator of a step."""
        return _with_all_sizes(self._read(positions, step, progress))

    def from_step(self, first: int) -> Iterator[tuple[int, Batch]]:
        """The steps first..total-1 and their batches, each read while the one before is being used."""
        with ThreadPoolExecutor(1) as pool:
            upcoming = pool.submit(self._read_step, first) if first < self.total else None
            for step in range(first, self.total):
                assert upcoming is not None
                batch = upcoming.result()
                upcoming = pool.submit(self._read_step, step + 1) if step + 1 < self.total else None
                yield step, _with_all_sizes(batch)

    def _read_step(self, step: int) -> Batch:
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng([self._settings.seed, epoch]).permutation(len(self._images))
        size = self._settings.batch
        return self._read(order[place * size : (place + 1) * size], step, step / self.total)

    def _read(self, positions: NDArray[np.int64], step: int, progress: float) -> Batch:
        """This process's part of a batch, with the sizes of that part alone."""
        part = share(len(positions))
        pixels, sizes = self._images.batch(positions[part])
        seed = int(np.random.SeedSequence([self._settings.seed, step]).generate_state(1, np.uint64)[0] >> 1)
        return Batch(
            torch.from_numpy(pixels).to(self._device, non_blocking=True),
            torch.from_numpy(sizes),
            torch.from_numpy(self._images.labels[positions]),
            torch.Generator().manual_seed(seed),
            progress,
            part,
        )


def _with_all_sizes(batch: Batch) -> Batch:
    """With the sizes that the other processes have read. Not for a second thread: requests must have one order."""
    return replace(batch, sizes=gather_rows(batch.sizes[None], len(batch.labels))[0]) if world_size() > 1 else batch


def fingerprint(images: Images) -> str:
    """Changes with the number, the names, the order and the labels of the images."""
    names = "\n".join(images.name(position) for position in range(len(images)))
    return hashlib.sha256(names.encode(errors="surrogateescape") + images.labels.tobytes()).hexdigest()
