"""Labelled image data sets by name: `fscil.data.load("cub200", "birds")`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fscil.data.cache import prepare
from fscil.data.images import Dataset, Images, Resize
from fscil.errors import DataError
from fscil.runtime.registry import Registry

__all__ = ["DATASETS", "Dataset", "Images", "Resize", "load", "prepare"]

# Functions load(root, **options) -> Dataset; one that needs no files has a default for root. Other packages add theirs
# by an entry point in "fscil.datasets", a plugin by @DATASETS.register("name").
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


def load(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """A data set by name.

    Parameters
    ----------
    name : str
        One of `DATASETS`: "cifar100", "cub200", "folder", "glyphs", "mini_imagenet", or one that a plugin registered.
    root : str or Path, optional
        The folder of its files. "glyphs" comes with fscil and needs none.
    **options
        Of the data set: "folder" takes `test_share` and `seed`.

    Returns
    -------
    Dataset
        Its train and test part and the names of its classes. Files are decoded when they are read; see `prepare`.

    Raises
    ------
    DataError
        For an unknown name, and where files are missing or damaged; the message says where to get them.

    Examples
    --------
    >>> import fscil.data
    >>> glyphs = fscil.data.load("glyphs")
    >>> len(glyphs.train), len(glyphs.test), glyphs.class_names[0]
    (10000, 5000, 'Latin small k')
    """
    loader = DATASETS[name]
    if root is not None:
        return loader(Path(root).expanduser(), **options)
    if _needs_root(loader):
        raise DataError(f"{name}: where are its files? Give their folder with --data DIR (fscil data: --root DIR).")
    return loader(**options)


def _needs_root(loader: Callable[..., Dataset]) -> bool:
    """Whether the first parameter, the folder of the files, has no default."""
    first = next(iter(inspect.signature(loader).parameters.values()), None)
    return first is not None and first.default is inspect.Parameter.empty
