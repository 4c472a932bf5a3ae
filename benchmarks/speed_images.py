"""What the benchmarks work on where no data is given: random pixels, and JPEG files of smooth noise."""

from pathlib import Path

import numpy as np
from PIL import Image

from fscil.data.images import ArrayPixels, Dataset, Images


def random_images(count: int, size: int, classes: int, seed: int = 0) -> Images:
    """Noise; each class as often as the others."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)
    return Images.of(ArrayPixels(pixels), np.arange(count) % classes)


def random_dataset(classes: int, train: int, test: int, size: int = 32) -> Dataset:
    """This many images per class in the two parts."""
    names = tuple(f"class {number}" for number in range(classes))
    parts = [random_images(classes * each, size, classes, seed) for seed, each in enumerate((train, test))]
    return Dataset(*parts, names, "random")


def jpeg_files(folder: Path, count: int, width: int, height: int) -> list[str]:
    """About as hard to decode as photos."""
    folder.mkdir(parents=True)
    files = []
    for number in range(count):
        small = np.random.default_rng(number).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        files.append(str(folder / f"{number}.jpg"))
        Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files
