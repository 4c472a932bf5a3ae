"""Batched two-view augmentation and class augmentation, on whatever device the batch is.

Every sample draws its own crop, flip and colours; only the order of the colour operations is shared by a batch. The few
numbers that takes are drawn on the host from the generator given, then sent along: a step can be repeated to the bit,
looks the same on every device, and never waits for one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from fscil.preprocess import normalise
from fscil.resample import crop_resize, crop_resize_one_by_one

CROP_ATTEMPTS = 10
CACHED_NUMBERS = 2**19  # of the images of a view that are made at once on a CPU
WORTH_A_CALL = 48  # pixels: smaller views are cropped on a CPU as on other devices, all of a batch at once

Change: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of images, and how much of it


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

    A box covers a share of the area uniform in scale, with an aspect log-uniform in ratio, and lies on whole pixels
    inside the image. Of ten attempts the first that fits counts; without one it is the largest central box whose aspect
    is within ratio.
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


def luminance(images: Tensor) -> Tensor:
    """(…, 3, h, w) -> (…, 1, h, w) by the weights of ITU-R 601."""
    red, green, blue = images.chunk(3, -3)
    return (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """(n, 3, h, w) in 0..1 times factor, (n, 1, 1, 1), as are those below."""
    return (images * factor).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from, or towards, the image's mean luminance."""
    mean = luminance(images.mean((-2, -1), keepdim=True))
    return (images * factor).add_(mean * (1 - factor)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Away from, or towards, the pixel's own gray."""
    return torch.lerp(luminance(images), images, factor).clamp_(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by shift, in turns; saturation and value stay as they are.

    With value v and chroma c the colour of hue h (in sixths of a turn) is v - c * clamp(2 - d, 0, 1), where d is the
    way round the circle from h to 3, 5 and 1 for red, green and blue. No case is told from another by torch.where,
    which is many times as slow as arithmetic.
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
    # How far from the opposite hue: between -3 and 9 before the circle is closed, all less 3.
    away = hue + ((6 * shift - opposite + 2) % 6 - 5)
    away = away.abs_().sub_(3).abs_()
    return torch.addcmul(value, away.sub_(2).clamp_(-1, 0), chroma)


def make_gray(images: Tensor, chosen: Tensor) -> Tensor:
    """chosen: 1 where an image becomes gray, 0 where it stays."""
    return torch.lerp(images, luminance(images), chosen)


@dataclass(frozen=True)
class Views:
    """The paper's preset transformations: resized crop, flip, colour jitter, grayscale; `count` independent draws."""

    size: int
    count: int = 2
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)  # of each channel, subtracted at the end
    std: tuple[float, ...] = (1.0, 1.0, 1.0)  # by which it is then divided

    def __call__(self, pixels: Tensor, sizes: Tensor, generator: Generator | None = None) -> Tensor:
        """(n, H, W, 3) uint8 padded, (n, 2) true sizes -> (count, n, 3, size, size) float, 0..1 if not normalised."""
        out = torch.empty(self.count, len(pixels), 3, self.size, self.size, device=pixels.device)
        on_host = pixels.device.type == "cpu"
        # There as many images at once as its cache holds: they are gone through a few dozen times.
        at_once = max(1, CACHED_NUMBERS // (3 * self.size**2)) if on_host else max(1, len(pixels))
        for view in out:
            boxes = random_boxes(sizes, self.scale, self.ratio, self.flip, generator)
            changes = self._changes(len(pixels), generator)
            for start in range(0, len(pixels), at_once):
                part = slice(start, start + at_once)
                if on_host and self.size >= WORTH_A_CALL:
                    images = crop_resize_one_by_one(pixels[part], boxes[part], self.size)
                else:
                    images = crop_resize(pixels[part], sizes[part], boxes[part], self.size).contiguous()
                for change, amount in changes:
                    images = change(images, amount[part].to(images.device, non_blocking=True))
                normalise(images, self.mean, self.std, out=view[part])  # while it is in the cache
        return out

    def _changes(self, count: int, generator: Generator | None) -> list[tuple[Change, Tensor]]:
        """What is done to the colours of a view's images, in this order, and (count, 1, 1, 1) how much to each."""

        def one_each(low: float, high: float) -> Tensor:
            return _uniform(low, high, (count, 1, 1, 1), generator)

        jittered = one_each(0, 1) < self.jitter

        def strength(spread: float) -> Tensor:
            """Factors around 1; exactly 1, which changes nothing, for a sample that is not jittered."""
            return torch.where(jittered, one_each(max(0.0, 1 - spread), 1 + spread), 1.0)

        shift = torch.where(jittered, one_each(-self.hue, self.hue), 0.0)
        operations: list[tuple[float, Change, Tensor]] = [
            (self.brightness, adjust_brightness, strength(self.brightness)),
            (self.contrast, adjust_contrast, strength(self.contrast)),
            (self.saturation, adjust_saturation, strength(self.saturation)),
            (self.hue, adjust_hue, shift),
        ]
        gray = (one_each(0, 1) < self.grayscale).float()
        order = torch.randperm(4, generator=generator).tolist()
        changes = [operations[place][1:] for place in order if operations[place][0] > 0 and self.jitter > 0]
        return [*changes, (make_gray, gray)] if self.grayscale > 0 else changes


def pair_label(a: Tensor, b: Tensor, classes: int) -> Tensor:
    """The class a mixture of classes a and b belongs to, in either order: classes..classes + classes(classes-1)/2 - 1.

    a, b: int64 of one shape, different from each other everywhere.
    """
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return classes + low * (2 * classes - low - 1) // 2 + (high - low) - 1


class PairClasses:
    """Which pairs of classes are classes of their own: all, or as many as limit allows, drawn by the seed.

    Their number grows with the square of the classes, and with it the classifier: 1,000 classes have 499,500 pairs.
    """

    def __init__(self, classes: int, limit: int = 0, seed: int = 0) -> None:
        pairs = classes * (classes - 1) // 2
        self.classes = classes
        self._drawn: Tensor | None = None  # ranks of the pairs, ascending
        if 0 < limit < pairs:
            drawn = np.random.default_rng([seed, classes]).choice(pairs, limit, replace=False, shuffle=False)
            self._drawn = torch.from_numpy(np.sort(drawn))
            pairs = limit
        self.outputs = classes + pairs  # of a classifier: base classes first

    def label(self, a: Tensor, b: Tensor) -> Tensor:
        """The class of a mixture of a and b, on the host; -1 where the two are one class, or not among those drawn."""
        label = pair_label(a, b, self.classes)
        if self._drawn is not None:
            rank = label - self.classes
            place = torch.searchsorted(self._drawn, rank).clamp_max(len(self._drawn) - 1)
            label = torch.where(self._drawn[place] == rank, self.classes + place, -1)
        return torch.where(a == b, -1, label)

    def partners(self, labels: Tensor, repeats: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Of a batch (n,): which are mixed with which, and the classes they make; (m,) each, m <= repeats * n."""
        count = len(labels)
        if self._drawn is None:  # `repeats` times, every image with the one in its place in a shuffled batch
            left = torch.arange(count, device=labels.device).expand(repeats, count).reshape(-1)
            right = torch.rand(repeats, count, generator=generator).argsort(1).to(labels.device).reshape(-1)
        else:  # most of those would not be among the pairs drawn: so any two images of the batch that are
            left, right = torch.combinations(torch.arange(count)).T
        made = self.label(labels[left], labels[right])
        usable = (made >= 0).nonzero().squeeze(1)
        if self._drawn is not None:
            usable = usable[torch.randperm(len(usable), generator=generator)[: repeats * count]]
        return left[usable], right[usable], made[usable]


def _mixing_weights(count: int, lam: Literal["uniform", "beta"], generator: Generator | None) -> Tensor:
    if lam == "uniform":
        return _uniform(0.4, 0.6, (count,), generator)
    if lam != "beta":
        raise ValueError(f'lam must be "uniform" or "beta", not {lam!r}')
    # Beta(20, 20) is the median of 39 uniforms: the 20th order statistic of 39 is distributed so exactly.
    drawn = torch.rand(count, 39, generator=generator).median(1).values
    return torch.where((drawn < 0.4) | (drawn > 0.6), 0.5, drawn)


def mix_classes(
    views: Tensor,
    labels: Tensor,
    classes: int | PairClasses,
    repeats: int = 4,
    lam: Literal["uniform", "beta"] = "uniform",
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Class augmentation (equation 5): mixtures of two classes are a class of their own.

    views: (V, n, 3, h, w); labels: (n,). Returns (V, n + m, 3, h, w) and (n + m,), originals first. Each of `repeats`
    rounds shuffles the batch and mixes every sample with the one in its place, where the two differ in class; partner
    and lambda are the same in all views. Labels are best left on the host, so that choosing pairs waits for no device.
    """
    count = len(labels)
    if repeats == 0 or count == 0:
        return views, labels
    pairs = classes if isinstance(classes, PairClasses) else PairClasses(classes)
    left, right, mixed_labels = pairs.partners(labels, repeats, generator)
    weight = _mixing_weights(len(left), lam, generator)

    left, right = (each.to(views.device, non_blocking=True) for each in (left, right))
    weight = weight.to(views.device, views.dtype, non_blocking=True)
    out = views.new_empty((len(views), count + len(left), *views.shape[2:]))
    out[:, :count] = views
    for view, target in zip(views, out, strict=True):
        torch.lerp(view[right], view[left], weight[:, None, None, None], out=target[count:])
    return out, torch.cat([labels, mixed_labels])
