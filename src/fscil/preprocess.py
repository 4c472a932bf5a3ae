"""Preprocessing of test images: resize, centre crop, normalise. Serialisable, so that it is saved with a model."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fscil.resample import Interpolation, crop_resize

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

    crop: int
    resize: int | None = None
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = STATISTICS["cifar10"][0]
    std: tuple[float, ...] = STATISTICS["cifar10"][1]

    def boxes(self, sizes: Tensor) -> Tensor:
        """(n, 2) heights and widths -> (n, 4): the box of each image that becomes the crop.

        Resizing this box is equivalent to resizing the image and then cropping it. The crop starts at a whole pixel of
        the resized image, so that an image that is not resized is not blurred. One smaller than the crop is enlarged.
        """
        short = sizes.amin(1, keepdim=True)
        wanted = torch.full_like(short, self.resize) if self.resize else short
        resized = sizes * wanted.clamp_min(self.crop) // short  # integers: a rounded ratio could lose a pixel
        start = (resized - self.crop) // 2
        ratio = sizes.double() / resized
        top, left = (start * ratio).unbind(1)
        bottom, right = ((start + self.crop) * ratio).unbind(1)
        return torch.stack([left, top, right, bottom], 1).float()

    def __call__(self, pixels: Tensor, sizes: Tensor) -> Tensor:
        """(n, H, W, 3) uint8 padded, (n, 2) true sizes -> (n, 3, crop, crop) float, ready for the network."""
        boxes, count = self.boxes(sizes), max(1, len(pixels))
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
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        return cls(**plain)
