"""Antialiased crop and resize of a whole batch: a box of each image becomes size x size.

It is separable: each axis is a small dense matrix per sample, so that a batch is two batched matrix products, on any
device. The filters are Pillow's: the kernel widens when an image shrinks, and pixels outside the box but inside the
image contribute.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import interpolate

Interpolation: TypeAlias = Literal["bilinear", "bicubic"]


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp_min(0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -1/2."""
    near = (1.5 * distance - 2.5) * distance.square() + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


_KERNELS = {"bilinear": _triangle, "bicubic": _cubic}


def axis_weights(
    start: Tensor, end: Tensor, length: Tensor, out: int, inputs: int, interpolation: Interpolation
) -> Tensor:
    """(n, out, inputs): the weight of each input pixel in each output pixel along one axis.

    start, end: (n,) the box; end < start mirrors it. length: (n,) true extent; pixels from there on are padding.
    """
    kernel = _KERNELS[interpolation]
    step = (end - start) / out
    width = step.abs().clamp_min(1)[:, None, None]  # of the kernel
    positions = torch.arange(out, device=start.device, dtype=start.dtype)
    centre = start[:, None] + (positions + 0.5) * step[:, None]  # (n, out)
    pixels = torch.arange(inputs, device=start.device, dtype=start.dtype) + 0.5
    distance = (pixels - centre[:, :, None]).abs() / width  # (n, out, inputs)
    weights = kernel(distance) * (pixels < length[:, None, None])
    return weights / weights.sum(2, keepdim=True)


def crop_resize(
    pixels: Tensor, sizes: Tensor, boxes: Tensor, size: int, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """(n, H, W, 3) uint8 -> (n, 3, size, size) float in 0..1, channels last in memory.

    sizes: (n, 2) true heights and widths; boxes: (n, 4) left, top, right, bottom in pixels, right < left for a mirrored
    image.
    """
    count, height, width, channels = pixels.shape
    boxes = boxes.to(pixels.device, torch.float32, non_blocking=True)
    sizes = sizes.to(pixels.device, non_blocking=True)
    left, top, right, bottom = boxes.unbind(1)
    rows = axis_weights(top, bottom, sizes[:, 0], size, height, interpolation)
    columns = axis_weights(left, right, sizes[:, 1], size, width, interpolation)
    image = pixels.transpose(1, 2).reshape(count, width, height * channels).float()
    with torch.autocast(pixels.device.type, enabled=False):  # bfloat16 has fewer than the 8 bits of a pixel
        image = torch.bmm(columns, image).view(count, size, height, channels)  # (n, x, H, 3)
        image = image.transpose(1, 2).reshape(count, height, size * channels)
        # A cubic kernel overshoots at edges; like Pillow, clamp after each of the two passes.
        image = torch.bmm(rows, image.clamp_(0, 255)).view(count, size, size, channels)
    return (image.clamp_(0, 255) / 255).permute(0, 3, 1, 2)


def crop_resize_one_by_one(pixels: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Bilinear crop_resize on a CPU, image by image: torch's kernel for 8 bits is several times as fast.

    boxes lie on whole pixels. As with an image that Pillow crops and then resizes, pixels outside the box do not
    contribute, and values are rounded to 8 bits. (n, H, W, 3) uint8 -> (n, 3, size, size) float in 0..1, contiguous.
    """
    out = torch.empty(len(pixels), size, size, 3, dtype=torch.uint8)
    for image, target, (left, top, right, bottom) in zip(pixels, out, boxes.int().tolist(), strict=True):
        box = image[top:bottom, min(left, right) : max(left, right)].permute(2, 0, 1)[None]
        resized = interpolate(box, (size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        target.copy_(resized.flip(1) if right < left else resized)
    return out.permute(0, 3, 1, 2).contiguous().float().div_(255)
