"""Preprocessing of test images: resize, centre crop, normalise. Serialisable, so that it is saved with a model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias

import torch
from msgspec import Meta
from torch import Tensor

from fscil.resample import Interpolation, crop_resize
from fscil.runtime.validation import as_type

# Bounds of what is read from files.
Side: TypeAlias = Annotated[int, Meta(ge=1, le=16_384)]
Mean: TypeAlias = Annotated[float, Meta(ge=-1000, le=1000)]
Deviation: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1000)]
THREE = Meta(min_length=3, max_length=3)

CENTRE = (1, 1)
CORNERS = ((0, 0), (0, 2), (2, 0), (2, 2))
MAX_FLOATS = 2**27  # pixels of a batch that are floats at once: 512 MB

STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], out: Tensor | None = None) -> Tensor:
    """(…, 3, h, w) in 0..1 -> (images - mean) / std, per channel; written to out, if given."""
    means = torch.tensor(mean, device=images.device, dtype=images.dtype)[:, None, None]
    deviations = torch.tensor(std, device=images.device, dtype=images.dtype)[:, None, None]
    return torch.sub(images, means, out=out).div_(deviations)


@dataclass(frozen=True)
class Preprocess:
    """Resize the short side (None: not at all), take the central crop x crop pixels, normalise."""

    crop: Side
    resize: Side | None = None
    interpolation: Interpolation = "bilinear"
    mean: Annotated[tuple[Mean, ...], THREE] = STATISTICS["cifar10"][0]
    std: Annotated[tuple[Deviation, ...], THREE] = STATISTICS["cifar10"][1]

    def boxes(self, sizes: Tensor, place: tuple[int, int] = CENTRE) -> Tensor:
        """(n, 2) heights and widths -> (n, 4): the box of each image that becomes the crop.

        place: of the crop, down and across, in halves of the way: (0, 0) is the upper left corner.

        Resizing this box is equivalent to resizing the image and then cropping it. The crop starts at a whole pixel of
        the resized image, so that an image that is not resized is not blurred. One smaller than the crop is enlarged.
        """
        short = sizes.amin(1, keepdim=True)
        wanted = torch.full_like(short, self.resize) if self.resize else short
        resized = sizes * wanted.clamp_min(self.crop) // short  # integers: a rounded ratio could lose a pixel
        start = (resized - self.crop) * torch.tensor(place, device=sizes.device) // 2
        ratio = sizes.double() / resized
        top, left = (start * ratio).unbind(1)
        bottom, right = ((start + self.crop) * ratio).unbind(1)
        return torch.stack([left, top, right, bottom], 1).float()

    def __call__(self, pixels: Tensor, sizes: Tensor, place: tuple[int, int] = CENTRE) -> Tensor:
        """(n, H, W, 3) uint8 padded, (n, 2) true sizes -> (n, 3, crop, crop) float, ready for the network."""
        boxes, count = self.boxes(sizes, place), max(1, len(pixels))
        # A long image makes all of a batch as large, and they become floats: then fewer at a time.
        step = max(1, MAX_FLOATS * count // max(1, pixels.numel()))
        parts = [
            crop_resize(pixels[part], sizes[part], boxes[part], self.crop, self.interpolation)
            for part in (slice(start, start + step) for start in range(0, count, step))
        ]
        return normalise(torch.cat(parts) if len(parts) > 1 else parts[0], self.mean, self.std)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Preprocess":
        """What `to_dict` made, also after it was JSON. Raises a StoreError for anything else."""
        return as_type(content, cls, "the preprocessing")


@dataclass(frozen=True)
class SeveralCrops:
    """Several crops of a test image, whose features are averaged: the centre, its mirror image, and the corners."""

    preprocess: Preprocess
    count: int  # 1: the centre; 2: and its mirror image; 10: and those of the four corners

    def __call__(self, pixels: Tensor, sizes: Tensor) -> Iterator[Tensor]:
        """(n, H, W, 3) uint8 padded, (n, 2) true sizes -> one (n, 3, crop, crop) batch per crop."""
        for place in (CENTRE, *CORNERS) if self.count > 2 else (CENTRE,):
            crop = self.preprocess(pixels, sizes, place)
            yield crop
            if self.count > 1:
                yield crop.flip(3)
