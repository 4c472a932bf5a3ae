"""Labelled image data sets by name: `fscil.data.load("cub200", "birds")`."""

import difflib
from importlib import import_module
from pathlib import Path
from typing import Any

from fscil.data.cache import prepare
from fscil.data.images import Dataset, Images, Resize
from fscil.errors import DataError

__all__ = ["LOADERS", "Dataset", "Images", "Resize", "check_name", "load", "prepare"]

# Module with a function load(root, **options) -> Dataset; imported when asked for.
LOADERS = {
    "cifar100": "fscil.data.cifar100",
    "cub200": "fscil.data.cub200",
    "folder": "fscil.data.folder",
    "glyphs": "fscil.data.glyphs",
    "mini_imagenet": "fscil.data.mini_imagenet",
}
EMBEDDED = ("glyphs",)  # need no root


def load(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """The data set of this name, read from root; glyphs comes with fscil and needs none."""
    check_name(name)
    if root is None and name not in EMBEDDED:
        raise DataError(f"{name}: where are its files? Give their folder with --data DIR (fscil data: --root DIR).")
    dataset: Dataset = import_module(LOADERS[name]).load(None if root is None else Path(root).expanduser(), **options)
    return dataset


def check_name(name: str) -> None:
    if name not in LOADERS:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), LOADERS, n=1, cutoff=0.4)
        hint = f' Did you mean "{near[0]}"?' if near else ""
        raise DataError(f'no data set named "{name}".{hint} Known: {", ".join(LOADERS)}.')
