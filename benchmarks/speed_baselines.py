"""The other sides of the comparisons: each prepares, warms up and returns what one round does. No allocator setting."""

from collections.abc import Callable
from time import perf_counter

import literal
import numpy as np
import torch
from PIL import Image
from speed_images import random_images

from fscil.config import load_recipe
from fscil.models import build_backbone
from fscil.training.build import preprocess_of

BATCH = 256  # of feature extraction, as ours


def training_step(
    width: int, batch: int, steps: int, classes: int = 60, hidden: int = 2048
) -> Callable[[], dict[str, float]]:
    """The literal program; seconds per step. Its workers have nothing left to do when a round is over."""
    images = random_images(steps * batch, 32, classes)
    loader = literal.loader_of(literal.TwoViews(images.pixels.read(images.rows), images.labels.tolist(), 32), batch)
    network = literal.Network(width, classes, hidden)
    optimizer = literal.optimizer_of(network)

    def work() -> dict[str, float]:
        began = perf_counter()
        for _ in literal.train_epoch(network, optimizer, loader, classes):
            pass
        return {"seconds": (perf_counter() - began) / steps}

    for first, second, labels in loader:  # starts its workers
        few = slice(max(4, batch // 8))
        list(literal.train_epoch(network, optimizer, [(first[few], second[few], labels[few])], classes))
    return work


def matmul(size: int) -> Callable[[], dict[str, float]]:
    """The machine's peak in single precision: floating-point operations per second of a large product."""
    left, right, out = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)

    def work() -> dict[str, float]:
        began = perf_counter()
        torch.mm(left, right, out=out)
        seconds = perf_counter() - began
        return {"seconds": seconds, "flops": 2 * size**3 / seconds}

    work()
    return work


def two_views(
    size: int, batch: int, count: int, files: list[str] | None = None, resize: int | list[int] | None = None
) -> Callable[[], dict[str, float]]:
    """Pillow in two workers, from files or from random pixels of this size; seconds per image."""
    source = (files * -(-count // len(files)))[:count] if files else random_images(count, size, 2).pixels.array
    wanted = tuple(resize) if isinstance(resize, list) else resize
    loader = literal.loader_of(literal.TwoViews(source, [0] * count, size, wanted), batch)

    def work() -> dict[str, float]:
        began = perf_counter()
        for _ in loader:
            pass
        return {"seconds": (perf_counter() - began) / count}

    work()
    return work


def features(width: int, count: int) -> Callable[[], dict[str, float]]:
    """An ordinary ResNet in torch's default layout, on images prepared as ours are; seconds per image."""
    network, images = literal.ResNet18(width).eval(), random_images(count, 32, 2)
    pixels, sizes = (torch.from_numpy(part) for part in images.batch(images.rows))
    preprocess = preprocess_of(load_recipe("cifar100"))

    @torch.no_grad()
    def work() -> dict[str, float]:
        began = perf_counter()
        for at in range(0, count, BATCH):
            network(preprocess(pixels[at : at + BATCH], sizes[at : at + BATCH]).contiguous())
        return {"seconds": (perf_counter() - began) / count}

    work()
    return work


def encode_folder(files: list[str]) -> Callable[[], dict[str, float]]:
    """Pillow, then the network as torch builds it, 16 photos at a time in one process; seconds per photo."""
    network = build_backbone("efficientnet_lite0").eval()

    def prepared(file: str) -> torch.Tensor:
        image = Image.open(file).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((round(scale * image.width), round(scale * image.height)), Image.Resampling.BILINEAR)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        pixels = torch.from_numpy(np.array(image.crop((left, top, left + 224, top + 224))))
        return (pixels.permute(2, 0, 1).float() - 127) / 128

    @torch.no_grad()
    def work() -> dict[str, float]:
        began = perf_counter()
        for at in range(0, len(files), 16):
            network(torch.stack([prepared(file) for file in files[at : at + 16]]))
        return {"seconds": (perf_counter() - began) / len(files)}

    work()
    return work
