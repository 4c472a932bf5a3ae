"""Images of past sessions that a method may keep: copies, so that nothing else of a session stays reachable."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fscil.data.images import Bytes, Images, Ints


@dataclass(frozen=True, eq=False)
class KeptPixels:
    """Copied images of any sizes."""

    images: tuple[Bytes, ...]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: Ints) -> list[Bytes]:
        return [self.images[row] for row in rows]

    def name(self, row: int) -> str:
        return f"exemplar {row}"


NOTHING = Images(KeptPixels(()), np.zeros(0, np.int64), np.zeros(0, np.int64))


def joined(kept: Images, more: Images) -> Images:
    """Copies of both, to keep or to train on together."""
    copies = []
    for images in (kept, more):
        pixels, sizes = images.batch(np.arange(len(images)))
        copies += [image[:height, :width].copy() for image, (height, width) in zip(pixels, sizes, strict=True)]
    return Images.of(KeptPixels(tuple(copies)), np.concatenate([kept.labels, more.labels]))


def to_tensors(kept: Images) -> dict[str, Tensor]:
    """exemplars.pixels (n, H, W, 3) padded, exemplars.sizes (n, 2), exemplars.labels (n,)"""
    pixels, sizes = kept.batch(np.arange(len(kept)))
    return {
        "exemplars.pixels": torch.from_numpy(pixels.copy()),
        "exemplars.sizes": torch.from_numpy(sizes),
        "exemplars.labels": torch.from_numpy(kept.labels.copy()),
    }


def from_tensors(state: dict[str, Tensor]) -> Images:
    pixels, sizes = state["exemplars.pixels"].numpy(), state["exemplars.sizes"].numpy()
    copies = tuple(image[:height, :width].copy() for image, (height, width) in zip(pixels, sizes, strict=True))
    return Images.of(KeptPixels(copies), state["exemplars.labels"].numpy())
