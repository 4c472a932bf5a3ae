"""Batched two-view augmentation, on the device of the batch.

Every sample has its own crop, flip and colours; only the order of the colour operations is shared by a batch. Random
numbers are drawn on the host from the given generator, then copied to the device: a step can be repeated to the bit, is
the same on every device, and never waits for one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from fscil.preprocess import Preprocess, normalise
from fscil.resample import crop_resize, crop_resize_one_by_one

CROP_ATTEMPTS = 10
MAX_CACHED_VALUES = 2**19  # of the images that are augmented at once on a CPU, to stay in its cache
ALL = slice(None)  # rows of a batch
MIN_SIZE_ONE_BY_ONE = 48  # pixels: from this size on, cropping image by image is faster on a CPU than in a batch

ColourOperation: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of images, and the strength for each


def _uniform(low: float, high: float, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
    return torch.empty(shape).uniform_(low, high, generator=generator)


def random_boxes(
    sizes: Tensor,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    flip: float = 0.0,
    generator: Generator | None = None,
) -> Tensor:
    """(n, 2) heights and widths -> (n, 4) left, top, right, bottom; mirrored (right < left) with probability flip.

    A box covers a fraction of the area uniform in scale, with an aspect ratio log-uniform in ratio, and lies on whole
    pixels inside the image. Of ten attempts the first that fits is used; if none does, the largest central box whose
    aspect is within ratio.
    """
    count = len(sizes)
    height, width = (extent[:, None].float() for extent in sizes.unbind(1))
    area = height * width * _uniform(*scale, (count, CROP_ATTEMPTS), generator)
    aspect = _uniform(math.log(ratio[0]), math.log(ratio[1]), (count, CROP_ATTEMPTS), generator).exp()
    wide, high = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
    first = fits.float().argmax(1, keepdim=True)
    chosen_w, chosen_h = wide.gather(1, first), high.gather(1, first)
    left = (torch.rand(count, 1, generator=generator) * (width - chosen_w + 1)).floor()
    top = (torch.rand(count, 1, generator=generator) * (height - chosen_h + 1)).floor()

    none = ~fits.any(1, keepdim=True)
    central_w = torch.minimum(width, (height * ratio[1]).round()).clamp_min(1)
    central_h = torch.minimum(height, (width / ratio[0]).round()).clamp_min(1)
    chosen_w, chosen_h = torch.where(none, central_w, chosen_w), torch.where(none, central_h, chosen_h)
    left = torch.where(none, ((width - central_w) / 2).floor(), left)
    top = torch.where(none, ((height - central_h) / 2).floor(), top)

    right = left + chosen_w
    mirrored = torch.rand(count, 1, generator=generator) < flip
    ends = torch.where(mirrored, right, left), torch.where(mirrored, left, right)
    return torch.cat([ends[0], top, ends[1], top + chosen_h], 1)


def padded_boxes(
    sizes: Tensor,
    preprocess: Preprocess,
    padding: float,
    flip: float = 0.0,
    generator: Generator | None = None,
) -> Tensor:
    """(n, 2) heights and widths -> (n, 4) left, top, right, bottom; mirrored (right < left) with probability flip.

    A box has the size of that of the test image, on whole pixels, anywhere in the image with a border of `padding`
    times the box on each side: it may reach beyond the image.
    """
    left, top, right, bottom = preprocess.boxes(sizes).unbind(1)
    height, width = sizes.float().unbind(1)
    wide, high = (right - left).round(), (bottom - top).round()

    def anywhere(extent: Tensor, box: Tensor) -> Tensor:
        border = (padding * box).round()
        places = extent - box + 2 * border + 1
        return (torch.rand(len(sizes), generator=generator) * places).floor() - border

    x, y = anywhere(width, wide), anywhere(height, high)
    mirrored = torch.rand(len(sizes), generator=generator) < flip
    ends = torch.where(mirrored, x + wide, x), torch.where(mirrored, x, x + wide)
    return torch.stack([ends[0], y, ends[1], y + high], 1)


def border_of(sizes: Tensor, boxes: Tensor) -> int:
    """(n, 2), (n, 4) -> the width of the black border that all images need, so that no box reaches beyond.

    Pixels beyond the true size of an image must be black too.
    """
    ends = boxes.view(-1, 2, 2)  # x and y of two corners
    beyond = torch.maximum(-ends.amin(1), ends.amax(1) - sizes.flip(1)).amax()
    return max(0, int(beyond.ceil()))


def luminance(images: Tensor) -> Tensor:
    """(…, 3, h, w) -> (…, 1, h, w) by the weights of ITU-R 601."""
    red, green, blue = images.chunk(3, -3)
    return (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """(n, 3, h, w) in 0..1, times factor (n, 1, 1, 1)."""
    return (images * factor).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Images (n, 3, h, w) blended with their mean luminance, by factor (n, 1, 1, 1); above 1 away from it."""
    mean = luminance(images.mean((-2, -1), keepdim=True))
    return (images * factor).add_(mean * (1 - factor)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Images (n, 3, h, w) blended with their grayscale version, by factor (n, 1, 1, 1); above 1 away from it."""
    return torch.lerp(luminance(images), images, factor).clamp_(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Images (n, 3, h, w) with the hue of HSV shifted by shift (n, 1, 1, 1), in turns; saturation and value stay.

    With value v and chroma c the colour of hue h (in sixths of a turn) is v - c * clamp(2 - d, 0, 1), where d is the
    distance on the circle from h to 3, 5 and 1 for red, green and blue. Cases are combined by arithmetic, as
    torch.where is many times slower.
    """
    red, green, blue = images.chunk(3, -3)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    below = (value - images).div_(chroma.clamp_min(1e-12))  # 0 for the largest channel, 1 for the smallest
    red, green, blue = below.chunk(3, -3)
    not_red, not_green = red.ceil(), green.ceil()
    hue = torch.lerp(2 + red - blue, 4 + green - red, not_green)
    hue = torch.lerp(blue - green, hue, not_red)
    opposite = torch.tensor([3.0, 5.0, 1.0], device=images.device)[:, None, None]
    # Distance from the opposite hue: between -3 and 9 before it is taken modulo the circle, here less 3.
    distance = hue + ((6 * shift - opposite + 2) % 6 - 5)
    distance = distance.abs_().sub_(3).abs_()
    return torch.addcmul(value, distance.sub_(2).clamp_(-1, 0), chroma)


def make_gray(images: Tensor, chosen: Tensor) -> Tensor:
    """Images (n, 3, h, w); chosen (n, 1, 1, 1): 1 where an image becomes gray, 0 where it stays."""
    return torch.lerp(images, luminance(images), chosen)


@dataclass(frozen=True)
class Views:
    """The paper's transformations: random resized crop, flip, colour jitter, grayscale; `count` independent views.

    crops: the preprocessing of test images, for padded crops at their scale instead of resized ones.
    """

    size: int
    count: int = 2
    crops: Preprocess | None = None
    padding: float = 0.125  # of padded crops, see padded_boxes
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8  # probability of the four below
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)  # of each channel, for normalisation
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __call__(self, pixels: Tensor, sizes: Tensor, generator: Generator | None = None, part: slice = ALL) -> Tensor:
        """(n, H, W, 3) uint8 padded, (n, 2) true sizes -> (count, n, 3, size, size) float, 0..1 if not normalised.

        part: the rows of a larger batch that pixels holds. Then sizes are those of the larger batch, for all of which
        random numbers are drawn, so that its images look the same however it is divided.
        """
        out = torch.empty(self.count, len(pixels), 3, self.size, self.size, device=pixels.device)
        on_host = pixels.device.type == "cpu"
        # On a CPU as many images at once as its cache holds: each is read and written a few dozen times.
        at_once = max(1, MAX_CACHED_VALUES // (3 * self.size**2)) if on_host else max(1, len(pixels))
        for view in out:
            source, extents, boxes = self._crops(pixels, sizes, generator, part)
            operations = self._colour_operations(len(sizes), generator)
            operations = [(operation, strength[part]) for operation, strength in operations]
            for start in range(0, len(pixels), at_once):
                some = slice(start, start + at_once)
                if on_host and self.size >= MIN_SIZE_ONE_BY_ONE:
                    images = crop_resize_one_by_one(source[some], boxes[some], self.size)
                else:
                    images = crop_resize(source[some], extents[some], boxes[some], self.size).contiguous()
                for operation, strength in operations:
                    images = operation(images, strength[some].to(images.device, non_blocking=True))
                normalise(images, self.mean, self.std, out=view[some])
        return out

    def _crops(
        self, pixels: Tensor, sizes: Tensor, generator: Generator | None, part: slice
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What boxes are cut from, its true sizes, and the boxes of a view."""
        if self.crops is None:
            return pixels, sizes[part], random_boxes(sizes, self.scale, self.ratio, self.flip, generator)[part]
        boxes = padded_boxes(sizes, self.crops, self.padding, self.flip, generator)
        border = border_of(sizes, boxes)
        padded = torch.nn.functional.pad(pixels, (0, 0, border, border, border, border))
        return padded, sizes[part] + 2 * border, boxes[part] + border

    def _colour_operations(self, count: int, generator: Generator | None) -> list[tuple[ColourOperation, Tensor]]:
        """The colour operations of a view, in random order, each with its strength per image, (count, 1, 1, 1)."""

        def one_each(low: float, high: float) -> Tensor:
            return _uniform(low, high, (count, 1, 1, 1), generator)

        jittered = one_each(0, 1) < self.jitter

        def factors(spread: float) -> Tensor:
            """Uniform around 1; exactly 1, which changes nothing, for a sample that is not jittered."""
            return torch.where(jittered, one_each(max(0.0, 1 - spread), 1 + spread), 1.0)

        shift = torch.where(jittered, one_each(-self.hue, self.hue), 0.0)
        jitter: list[tuple[float, ColourOperation, Tensor]] = [
            (self.brightness, adjust_brightness, factors(self.brightness)),
            (self.contrast, adjust_contrast, factors(self.contrast)),
            (self.saturation, adjust_saturation, factors(self.saturation)),
            (self.hue, adjust_hue, shift),
        ]
        gray = (one_each(0, 1) < self.grayscale).float()
        order = torch.randperm(4, generator=generator).tolist()
        operations = [jitter[place][1:] for place in order if jitter[place][0] > 0 and self.jitter > 0]
        return [*operations, (make_gray, gray)] if self.grayscale > 0 else operations
