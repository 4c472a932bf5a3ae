"""Images of past sessions that a method keeps: chosen by herding, and copied, so that the others are not reachable."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

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


NO_IMAGES = Images(KeptPixels(()), np.zeros(0, np.int64), np.zeros(0, np.int64))


def joined(*parts: Images) -> Images:
    """Copies of all of them in one set, to keep or to train on together."""
    copies = []
    for images in parts:
        pixels, sizes = images.batch(np.arange(len(images)))
        copies += [image[:height, :width].copy() for image, (height, width) in zip(pixels, sizes, strict=True)]
    return Images.of(KeptPixels(tuple(copies)), np.concatenate([images.labels for images in parts]))


def herded(images: Images, features: Tensor, count: int) -> Images:
    """At most count images of each class, chosen by herding on their (n, d) features."""
    members = [np.flatnonzero(images.labels == label) for label in images.counts]
    chosen = [own[herding(features[own], count).numpy()] for own in members]
    return images.select(np.concatenate(chosen))


def herding(features: Tensor, count: int) -> Tensor:
    """(n, d) features of one class -> positions of the first count exemplars (Rebuffi et al., CVPR 2017), in order.

    Each is the one that brings the mean of those chosen nearest to the mean of all. Features are normalised.
    """
    unit = F.normalize(features.double(), dim=1)
    mean, total = unit.mean(0), torch.zeros_like(unit[0])
    free, chosen = torch.ones(len(unit), dtype=torch.bool), []
    for number in range(1, min(count, len(unit)) + 1):
        distance = (mean - (total + unit) / number).norm(dim=1)
        nearest = int(distance.where(free, torch.inf).argmin())
        free[nearest], total = False, total + unit[nearest]
        chosen.append(nearest)
    return torch.tensor(chosen)


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
