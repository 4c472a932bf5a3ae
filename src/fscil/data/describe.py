"""A text about a data set: images per part and class, their sizes, and differences from the published numbers."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fscil.data import load
from fscil.data.images import Images
from fscil.errors import BadImageError

# Classes, images per part, and images per class and part where all classes have as many.
PUBLISHED: dict[str, tuple[int, dict[str, int], dict[str, int]]] = {
    "cifar100": (100, {"train": 50000, "test": 10000}, {"train": 500, "test": 100}),
    "mini_imagenet": (100, {"train": 50000, "test": 10000}, {"train": 500, "test": 100}),
    "cub200": (200, {"train": 5994, "test": 5794}, {}),
}
SAMPLE = 24  # images opened to look at their sizes


def describe(name: str, root: str | Path | None = None, **options: Any) -> str:
    """A few lines for a reader; where files are missing, the DataError names them and says where to get them."""
    dataset = load(name, root, **options)
    parts = {"train": dataset.train, "test": dataset.test}
    lines = [f"{name}{f' in {root}' if root else ''}: {len(dataset.class_names)} classes"]
    lines += [f"  {part:5}  {_part(images)}" for part, images in parts.items()]
    if name in PUBLISHED:
        unusual = _unusual(name, len(dataset.class_names), parts)
        lines += [f"  not as published: {what}" for what in unusual] or ["  numbers of classes and images as published"]
    return "\n".join(lines)


def _part(images: Images) -> str:
    if not len(images):
        return "no images"
    counts = images.counts.values()
    return f"{len(images)} images of {len(counts)} classes, {_span(counts)} per class; {_sizes(images)}"


def _sizes(images: Images) -> str:
    """Width and height of images spread evenly over the part."""
    positions = np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(np.int64))
    heights, widths, bad = [], [], []
    for position in positions:
        try:
            height, width = images.batch(np.array([position]))[1][0].tolist()
            heights.append(height)
            widths.append(width)
        except BadImageError as error:
            bad.append(str(error))
    text = f"{_span(widths)} pixels wide, {_span(heights)} high" if widths else "sizes unknown"
    if bad:
        return f"{text}; of {len(positions)} that were decoded {len(bad)} are damaged (first: {bad[0]})"
    return f"{text} ({len(positions)} decoded)"


def _unusual(name: str, classes: int, parts: dict[str, Images]) -> list[str]:
    expected, totals, each = PUBLISHED[name]
    found = [] if classes == expected else [f"{classes} classes instead of {expected}"]
    for part, images in parts.items():
        if len(images) != totals[part]:
            found.append(f"{len(images)} {part} images instead of {totals[part]}")
        elif part in each and set(images.counts.values()) != {each[part]}:
            found.append(f"{_span(images.counts.values())} {part} images per class instead of {each[part]}")
    return found


def _span(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
