"""Batched two-view augmentation and class augmentation, on the device of the batch.

Every sample has its own crop, flip and colours; only the order of the colour operations is shared by a batch. Random
numbers are drawn on the host from the given generator, then copied to the device: a step can be repeated to the bit, is
the same on every device, and never waits for one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from fscil.preprocess import Preprocess, normalise
from fscil.resample import crop_resize, crop_resize_one_by_one

CROP_ATTEMPTS = 10
MAX_CACHED_VALUES = 2**19  # of the images that are augmented at once on a CPU, to stay in its cache
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


def with_border(pixels: Tensor, sizes: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(n, H, W, 3), (n, 2), (n, 4) -> the images with a black border as wide as the boxes need, their sizes and boxes.

    Pixels beyond the true size of an image must be black too.
    """
    ends = boxes.view(-1, 2, 2)  # x and y of two corners
    beyond = torch.maximum(-ends.amin(1), ends.amax(1) - sizes.flip(1)).amax()
    border = max(0, int(beyond.ceil()))
    padded = torch.nn.functional.pad(pixels, (0, 0, border, border, border, border))
    return padded, sizes + 2 * border, boxes + border


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

    def __call__(self, pixels: Tensor, sizes: Tensor, generator: Generator | None = None) -> Tensor:
        """(n, H, W, 3) uint8 padded, (n, 2) true sizes -> (count, n, 3, size, size) float, 0..1 if not normalised."""
        out = torch.empty(self.count, len(pixels), 3, self.size, self.size, device=pixels.device)
        on_host = pixels.device.type == "cpu"
        # On a CPU as many images at once as its cache holds: each is read and written a few dozen times.
        at_once = max(1, MAX_CACHED_VALUES // (3 * self.size**2)) if on_host else max(1, len(pixels))
        for view in out:
            source, extents, boxes = self._crops(pixels, sizes, generator)
            operations = self._colour_operations(len(pixels), generator)
            for start in range(0, len(pixels), at_once):
                part = slice(start, start + at_once)
                if on_host and self.size >= MIN_SIZE_ONE_BY_ONE:
                    images = crop_resize_one_by_one(source[part], boxes[part], self.size)
                else:
                    images = crop_resize(source[part], extents[part], boxes[part], self.size).contiguous()
                for operation, strength in operations:
                    images = operation(images, strength[part].to(images.device, non_blocking=True))
                normalise(images, self.mean, self.std, out=view[part])
        return out

    def _crops(self, pixels: Tensor, sizes: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """What boxes are cut from, its true sizes, and the boxes of a view."""
        if self.crops is None:
            return pixels, sizes, random_boxes(sizes, self.scale, self.ratio, self.flip, generator)
        return with_border(pixels, sizes, padded_boxes(sizes, self.crops, self.padding, self.flip, generator))

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


def pair_label(a: Tensor, b: Tensor, classes: int) -> Tensor:
    """The class of mixtures of classes a and b: each unordered pair has a number of its own, after all classes.

    Parameters
    ----------
    a, b
        Class numbers, int64 of one shape, different from each other everywhere.
    classes
        Number of classes, of which a and b are 0..classes-1.

    Returns
    -------
    Tensor
        Numbers in classes..classes + classes (classes - 1) / 2 - 1, of the shape of a and b.

    Examples
    --------
    >>> pair_label(torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 2, 1]), classes=3)
    tensor([3, 4, 5, 5])
    """
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return classes + low * (2 * classes - low - 1) // 2 + (high - low) - 1


class PairClasses:
    """The pairs of classes whose mixtures are classes: all, or at most `limit` (0: no limit), drawn by the seed.

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
        """The class of mixtures of a and b, on the host; -1 where the two are the same class, or a pair not drawn."""
        label = pair_label(a, b, self.classes)
        if self._drawn is not None:
            rank = label - self.classes
            place = torch.searchsorted(self._drawn, rank).clamp_max(len(self._drawn) - 1)
            label = torch.where(self._drawn[place] == rank, self.classes + place, -1)
        return torch.where(a == b, -1, label)

    def partners(self, labels: Tensor, repeats: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Of a batch of labels (n,): the positions of both images of each mixture, and its class, (m,) each."""
        count = len(labels)
        if self._drawn is None:  # `repeats` times, every image with the one at its position in a shuffled batch
            left = torch.arange(count, device=labels.device).expand(repeats, count).reshape(-1)
            right = torch.rand(repeats, count, generator=generator).argsort(1).to(labels.device).reshape(-1)
        else:  # few of those would be pairs that were drawn: so a random choice of all in the batch that are
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
    # Beta(20, 20) is exactly the distribution of the median of 39 uniform numbers.
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
    """Class augmentation (equation 5): mixtures of images of two classes are images of a new class.

    Each of `repeats` rounds shuffles the batch and mixes every image with the one at its position, if their classes
    differ. Both images and their weights are the same in all views.

    Parameters
    ----------
    views
        (V, n, 3, h, w) views of a batch of images.
    labels
        (n,) their classes. Best on the host: then nothing waits for a device.
    classes
        Number of base classes, or which of their pairs are classes.
    repeats
        Mixtures per image, at most. 0 gives back views and labels.
    lam
        Distribution of the weight: "uniform" in 0.4..0.6, or "beta", Beta(20, 20) with 0.5 outside of 0.4..0.6.
    generator
        Source of randomness; torch's global one if None.

    Returns
    -------
    tuple of Tensor
        (V, n + m, 3, h, w) views and (n + m,) labels: the given ones first, then m <= repeats n mixtures.

    Raises
    ------
    ValueError
        If `lam` is neither of the two.

    Examples
    --------
    >>> views, labels = torch.rand(2, 4, 3, 8, 8), torch.tensor([0, 0, 1, 2])
    >>> mixed, targets = mix_classes(views, labels, classes=3, repeats=1, generator=torch.Generator().manual_seed(0))
    >>> mixed.shape
    torch.Size([2, 8, 3, 8, 8])
    >>> targets
    tensor([0, 0, 1, 2, 3, 4, 3, 4])
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
