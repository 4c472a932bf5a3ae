"""Labelled image data sets by name: `fscil.data.load("cub200", "birds")`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fscil.data.cache import prepare
from fscil.data.images import Dataset, Images, Resize
from fscil.errors import DataError
from fscil.runtime.registry import Registry

__all__ = ["DATASETS", "Dataset", "Images", "Resize", "load", "prepare"]

# Functions load(root, **options) -> Dataset. One of another package registers by an entry point in "fscil.datasets".
DATASETS: Registry[Callable[..., Dataset]] = Registry(
    "data set",
    "fscil.datasets",
    {
        "cifar100": "fscil.data.cifar100:load",
        "cub200": "fscil.data.cub200:load",
        "folder": "fscil.data.folder:load",
        "glyphs": "fscil.data.glyphs:load",
        "mini_imagenet": "fscil.data.mini_imagenet:load",
    },
    error=DataError,
)
EMBEDDED = ("glyphs",)  # need no root


def load(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """The data set of this name, read from root; glyphs comes with fscil and needs none."""
    loader = DATASETS[name]
    if root is None and name not in EMBEDDED:
        raise DataError(f"{name}: where are its files? Give their folder with --data DIR (fscil data: --root DIR).")
    return loader(None if root is None else Path(root).expanduser(), **options)
