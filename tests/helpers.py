"""A tiny data set that a tiny network learns in a second, methods trained on it, and the command line, called in this
process or another."""

import os
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from fscil.cli import main
from fscil.config import load_recipe
from fscil.data.images import ArrayPixels, Dataset, Images
from fscil.methods import METHODS
from fscil.training.base_training import TrainedNetwork, new_base_network, train_base_network
from fscil.training.context import Context
from fscil.training.run_folder import Run

NAMES = ("ant", "bee", "cat", "dög", "eel", "fox", "gnu", "hen", "ibis", "鹿", "koala", "lynx")
SIZE = 16

# A recipe for it: small enough that a step takes milliseconds, but with every part of the method switched on.
SMALL = (
    "model.backbone=resnet18",
    "model.init=scratch",
    "model.width=2",
    "model.projection=8",
    f"views.size={SIZE}",
    "mixing.repeats=1",
    "data.resize=none",
    "data.statistics=cifar10",
    "protocol.base_classes=6",
    "protocol.way=2",
    "protocol.shots=[2,1]",
    "train.epochs=2",
    "train.batch=8",
    "train.lr=0.05",
)

SMALL_NETWORK = tuple(item for item in SMALL if not item.startswith("protocol."))  # for models, which have no sessions


def picture(label, seed):
    """(SIZE, SIZE, 3): stripes whose direction, width and colour tell the class, with noise."""
    random = np.random.default_rng([label, seed])
    y, x = np.mgrid[:SIZE, :SIZE]
    turn, waves = np.pi * (label % 4) / 4, 1 + label // 4
    phase = 2 * np.pi * waves * (x * np.cos(turn) + y * np.sin(turn)) / SIZE + random.uniform(0, 2 * np.pi)
    colour = np.random.default_rng(label).uniform(0.2, 1, 3)
    image = 128 + 100 * np.sin(phase)[..., None] * colour + random.normal(0, 20, (SIZE, SIZE, 3))
    return image.clip(0, 255).astype(np.uint8)


def part(counts, first_seed):
    """Images of classes 0, 1, … with this many of each, shuffled as a real data set would be."""
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.stack([picture(label, first_seed + place) for place, label in enumerate(labels)])
    order = np.random.default_rng(first_seed).permutation(len(labels))
    return Images.of(ArrayPixels(pixels[order]), labels[order])


def tiny_dataset(classes=12, train=6, test=3):
    counts = [train] * classes
    return Dataset(part(counts, 0), part([test] * classes, 10_000), NAMES[:classes], "tiny")


def write_images(root, train=6, test=3, names=NAMES, split=True):
    """The same as PNG files: root/{train,test}/<class>/<number>.png, or root/<class>/<number>.png without split."""
    for name, count, first in (("train", train, 0), ("test", test, 10_000)):
        for label, class_name in enumerate(names):
            folder = (root / name if split else root) / class_name
            folder.mkdir(parents=True, exist_ok=True)
            for place in range(count):
                Image.fromarray(picture(label, first + place)).save(folder / f"{name}{place}.png")
    return root


def small_config(*assignments, recipe="folder"):
    return load_recipe(recipe, [*SMALL, *assignments])


CONTEXT = Context(torch.device("cpu"), quiet=True)


def method_class(method):
    """Of a name in METHODS, or of the class itself."""
    return METHODS[method] if isinstance(method, str) else method


def untrained_method(method, config, classes, class_names=NAMES):
    """On a network that has been initialised and not trained, for states to be loaded into."""
    kind = method_class(method)
    recipe = kind.base_recipe(config)
    trained = TrainedNetwork.of(recipe, new_base_network(recipe, classes, CONTEXT))
    return kind(config, trained, CONTEXT, class_names)


def base_trained_method(method, config, base, class_names=NAMES):
    """On a network that was trained on the base images by the method's base recipe; fit_base is yet to be called."""
    kind = method_class(method)
    return kind(config, train_base_network(kind.base_recipe(config), base, CONTEXT), CONTEXT, class_names)


def trained_method(method, config, base, shots, class_names=NAMES):
    """A method that has learned the base classes."""
    fitted = base_trained_method(method, config, base, class_names)
    fitted.fit_base(base, shots)
    return fitted


def sets(*assignments):
    """--set options for the small recipe and these settings."""
    return [word for item in (*SMALL, *assignments) for word in ("--set", item)]


def call(*arguments):
    """The command line in this process; returns its exit code."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a process of its own, where pytest makes no error of them
        patch.setattr(sys, "argv", ["fscil", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return end.code
    return 0


@contextmanager
def ctrl_c_at(step):
    """Within, a training of this process gets Ctrl-C when it logs this step."""
    log = Run.log

    def logging(self, **values):
        log(self, **values)
        if values["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", logging)
        yield


COMMAND = [sys.executable, "-c", "from fscil.cli import main; main()"]


def environment(cache):
    return {**os.environ, "FSCIL_CACHE": str(cache), "OMP_NUM_THREADS": "1"}


def start(arguments, cache, **options):
    """The command line in a process of its own."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
