"""Our sides of the comparisons, with our allocator setting: each prepares, warms up and returns what one round does.

What is timed is what the product runs: the trainer's own loop, the method's own feature cache, its sessions.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import CDLL
from gc import collect
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from speed_images import random_dataset, random_images
from torch import Tensor, nn

from fscil.classifier.backbones import encoder_of
from fscil.config import Config, load_recipe
from fscil.data import Dataset, Images, Resize, prepare
from fscil.data.images import FilePixels
from fscil.experiments.sessions import walk_all
from fscil.methods import Alice
from fscil.protocol import Draw, Protocol
from fscil.runtime.allocator import tune_allocator
from fscil.training.base_training import TrainedNetwork, base_step, new_base_network
from fscil.training.build import backbone_of, base_images, dataset_of, views_of
from fscil.training.context import Context
from fscil.training.loop import Batch, Trainer

CPU = Context.on("cpu", quiet=True)
SHOTS, DRAWS = (5, 1), 10


def recipe(*settings: str) -> Config:
    """The paper's for CIFAR-100, for one epoch, with these settings."""
    return load_recipe("cifar100", ["train.epochs=1", *settings])


# The training step


class Step:
    """Base training of so many steps on random images by the trainer's own loop, as often as asked."""

    def __init__(
        self, width: int, batch: int, steps: int, size: int = 32, classes: int = 60, hidden: int = 2048, pairs: int = 0
    ) -> None:
        """hidden: size of the projection; pairs: at most so many pair classes, 0: all."""
        model = f"model.width={width}", f"model.projection={hidden}", f"mixing.pairs={pairs}"
        self.config = recipe(*model, f"train.batch={batch}", f"views.size={size}")
        self.images = random_images(steps * batch, size, classes)
        self.trainer = Trainer(self.config.train, CPU)
        self.network = new_base_network(self.config, classes, CPU)
        self.loss = base_step(self.config, self.network, classes)
        self.steps = steps
        self.passed = 0  # images through the network in the last call
        self.network.register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.passed += len(inputs[0])

    def __call__(self) -> float:
        """Seconds per step."""
        self.passed, began = 0, perf_counter()
        self.trainer.train(self.network, self.images, self.loss)
        return (perf_counter() - began) / self.steps

    @property
    def parameter_bytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in self.network.parameters())


def operations_per_image(network: nn.Module, size: int) -> float:
    """Of a step: 2 x multiply-adds of convolutions and linear layers, forward plus twice that backward."""
    counted = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counted.append(2 * output.numel() * module.weight[0].numel())

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    was_training = network.training
    with torch.no_grad():
        network.eval()(torch.zeros(2, 3, size, size))
    network.train(was_training)
    for hook in hooks:
        hook.remove()
    return 3 * sum(counted) / 2


def training_step(
    width: int, batch: int, steps: int, size: int = 32, classes: int = 60, hidden: int = 2048, pairs: int = 0
) -> Callable[[], dict[str, float]]:
    """Seconds per step, and operations per second in it."""
    tune_allocator()
    step = Step(width, batch, steps, size, classes, hidden, pairs)
    operations = operations_per_image(step.network, size)
    Step(width, max(4, batch // 8), 1, size, 4, hidden)()

    def work() -> dict[str, float]:
        seconds = step()
        return {"seconds": seconds, "flops": operations * step.passed / step.steps / seconds}

    return work


# Memory


def status(name: str) -> int:
    """Bytes, from what the kernel says of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}: the peak memory cannot be measured on this system.")


def step_memory(
    width: int, batch: int, steps: int = 2, size: int = 32, classes: int = 60, hidden: int = 2048, pairs: int = 0
) -> Callable[[], dict[str, float]]:
    """Peak memory of training, network included, and what it cannot do without: one round in a fresh process.

    From the second step on all of it exists: activations, parameters, gradients, momentum. A small step has loaded the
    libraries' code before, which is not counted.
    """
    tune_allocator()
    Step(8, 4, 1, classes=4, hidden=hidden)()
    step = Step(width, batch, steps, size, classes, hidden, pairs)

    def work() -> dict[str, float]:
        collect()
        with suppress(OSError, AttributeError):
            CDLL("libc.so.6").malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = status("VmRSS")
        seconds = step()
        peak = status("VmHWM") - before + step.parameter_bytes
        saved, kept = saved_bytes(step), 3 * step.parameter_bytes
        return {"seconds": seconds, "peak": peak, "needed": sum(saved) + kept, "needed at once": max(saved) + kept}

    return work


def saved_bytes(step: Step) -> list[int]:
    """What autograd keeps for the backward pass beside the parameters, each storage counted once, view by view.

    A step passes its views backward one after the other: what is kept for two of them is not there at once.
    """
    saved: dict[int, torch.UntypedStorage] = {}  # by address; held, so that none is freed and its address used again
    totals = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage
        return tensor

    def counting(batch: Batch) -> Iterator[Tensor]:
        parts = iter(step.loss(batch))
        while True:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = next(parts, None)
            if loss is None:
                return
            for parameter in step.network.parameters():
                saved.pop(parameter.untyped_storage().data_ptr(), None)
            totals.append(sum(storage.nbytes() for storage in saved.values()))
            saved.clear()
            yield loss

    one = step.images.select(range(step.config.train.batch))
    step.trainer.train(step.network, one, counting)
    return totals


# Views, features, sessions


def two_views(
    size: int,
    batch: int,
    count: int,
    files: list[str] | None = None,
    resize: int | list[int] | None = None,
    cache: str | None = None,
) -> Callable[[], dict[str, float]]:
    """From the uint8 cache of these files, or from random pixels of this size; seconds per image."""
    tune_allocator()
    images = random_images(count, size, 2)
    if files:
        images = Images.of(FilePixels(Path(files[0]).parent, [Path(file).name for file in files]), [0] * len(files))
        wanted = Resize(tuple(resize) if isinstance(resize, list) else resize)
        images = prepare(Dataset(images, images, ("any",)), wanted, Path(cache or "."), quiet=True).train
    config = recipe(f"views.size={size}")
    views, generator = views_of(config), torch.Generator().manual_seed(0)

    def work() -> dict[str, float]:
        began = perf_counter()
        for at in range(0, count, batch):
            pixels, sizes = images.batch(np.arange(at, min(at + batch, count)) % len(images))
            views(torch.from_numpy(pixels), torch.from_numpy(sizes), generator)
        return {"seconds": (perf_counter() - began) / count}

    work()
    return work


def alice(width: int) -> Alice:
    """Untrained: what it costs does not depend on its weights."""
    config = recipe(f"model.width={width}")
    return Alice(config, TrainedNetwork(backbone_of(config), None), CPU)


def features(width: int, count: int) -> Callable[[], dict[str, float]]:
    """Seconds per image."""
    tune_allocator()
    extract, images = alice(width).features, random_images(count, 32, 2)

    def work() -> dict[str, float]:
        extract.clear()
        began = perf_counter()
        extract(images)
        return {"seconds": (perf_counter() - began) / count}

    work()
    return work


def _protocol_and_data(data: str | None, train: int, test: int) -> tuple[Protocol, Dataset]:
    dataset = dataset_of(recipe(), Path(data), quiet=True) if data else random_dataset(100, train, test)
    return Protocol(60, 5, 8), dataset


def sessions(width: int, data: str | None, train: int, test: int) -> Callable[[], dict[str, float]]:
    """Base prototypes and all sessions, 5-shot and 1-shot, under ten draws, of a network that is trained; seconds."""
    tune_allocator()
    protocol, dataset = _protocol_and_data(data, train, test)
    method = alice(width)
    method.features(dataset.test.select(range(min(512, len(dataset.test)))))
    draws: list[Draw] = list(range(DRAWS))

    def work() -> dict[str, float]:
        method.features.clear()
        began = perf_counter()
        method.fit_base(base_images(dataset, protocol), SHOTS)
        for _ in walk_all(method, dataset, protocol, SHOTS, draws):
            pass
        return {"seconds": perf_counter() - began}

    return work


def one_pass(width: int, data: str | None, train: int, test: int) -> Callable[[], dict[str, float]]:
    """Features of the images that the sessions need, and nothing else; seconds."""
    tune_allocator()
    protocol, dataset = _protocol_and_data(data, train, test)
    labels = dataset.train.labels
    drawn = [
        protocol.with_shots(max(SHOTS)).samples(labels, session, draw)
        for session in range(1, protocol.sessions + 1)
        for draw in range(DRAWS)
    ]
    needed = dataset.train.select(np.unique(np.concatenate([protocol.samples(labels, 0), *drawn])))
    extract = alice(width).features
    extract(dataset.test.select(range(min(512, len(dataset.test)))))

    def work() -> dict[str, float]:
        extract.clear()
        began = perf_counter()
        extract(needed)
        extract(dataset.test)
        return {"seconds": perf_counter() - began}

    return work


def encode_folder(files: list[str]) -> Callable[[], dict[str, float]]:
    """Photos from their files to features, as fit, enroll and predict do it; seconds per photo."""
    tune_allocator()
    encoder = encoder_of("efficientnet_lite0")

    def work() -> dict[str, float]:
        began = perf_counter()
        encoder.features(files)
        return {"seconds": (perf_counter() - began) / len(files)}

    encoder.features(files[:16])
    return work
