"""CIFAR-100: 50,000 + 10,000 images of 32 x 32 pixels, from its archive, the folder in it, or one npz file."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from fscil.data.images import ArrayPixels, Dataset, Images
from fscil.errors import DataError

FOLDER, ARCHIVE, ARRAYS = "cifar-100-python", "cifar-100-python.tar.gz", "cifar100.npz"
MD5 = {
    ARCHIVE: "eb9058c3a382ffc7106e4002c42a8d85",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
AGAIN = 'Delete it and fetch it again with "fscil data cifar100 --root DIR --download".'
FINE_LABELS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASS_NAMES = tuple(FINE_LABELS.split())


def load(root: Path) -> Dataset:
    """root: one of the three forms, or a folder that holds one. Images in array order, fine labels in natural order."""
    for path in (root, root / FOLDER, root / ARCHIVE, root / ARRAYS):
        if (path / "train").is_file():
            arrays = _from_files({part: path / part for part in ("train", "test")})
        elif path.suffix == ".npz" and path.is_file():
            arrays = _from_npz(path)
        elif path.is_file():
            arrays = _from_archive(path)
        else:
            continue
        train, test = (_images(part, arrays, path) for part in ("train", "test"))
        return Dataset(train, test, CLASS_NAMES, "cifar100", benchmark=True)
    raise DataError(
        f"cifar100: {root} holds neither {FOLDER}/train nor {ARCHIVE} nor {ARRAYS}. "
        f'Run "fscil data cifar100 --root {root} --download" to fetch it (161 MB).'
    )


def _images(part: str, arrays: dict[str, Any], path: Path) -> Images:
    """One part, after a look at what the arrays hold."""
    pixels, labels = arrays[f"{part}_x"], arrays[f"{part}_y"]
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (32, 32, 3):
        found = f"{pixels.dtype} {pixels.shape}"
        raise DataError(f"{path}: {part} images must be uint8 (n, 32, 32, 3), found {found}.")
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        found = f"{labels.dtype} {labels.shape}"
        raise DataError(f"{path}: {part} labels must be whole numbers ({len(pixels)},), found {found}.")
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(CLASS_NAMES)):
        found = f"{labels.min()} to {labels.max()}"
        raise DataError(f"{path}: {part} labels must be the fine labels 0 to 99, found {found}.")
    return Images.of(ArrayPixels(pixels, f"cifar100 {part} image"), labels)


def _from_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as content:
            # Of a member that is no array numpy gives the bytes.
            return {name: np.asarray(content[name]) for name in ("train_x", "train_y", "test_x", "test_y")}
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}. Expected are train_x, train_y, test_x and test_y.") from None
    except Exception as error:  # zipfile, zlib and the parser of numpy's headers raise exceptions of many types
        raise DataError(f"{path}: not a whole npz file of plain arrays ({error}).") from error


def _from_archive(path: Path) -> dict[str, Any]:
    content = _verified(_read(path), ARCHIVE, path)
    arrays: dict[str, Any] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for part in ("train", "test"):
            member = archive.extractfile(f"{FOLDER}/{part}")
            arrays |= _unpickle(part, member.read() if member else b"", path)
    return arrays


def _from_files(paths: dict[str, Path]) -> dict[str, Any]:
    return {name: array for part, path in paths.items() for name, array in _unpickle(part, _read(path), path).items()}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {AGAIN}") from error


def _verified(content: bytes, name: str, path: Path) -> bytes:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != MD5[name]:
        raise DataError(f"{path}: the checksum of {name} is {found}, published is {MD5[name]}. {AGAIN}")
    return content


def _unpickle(part: str, content: bytes, path: Path) -> dict[str, Any]:
    """The arrays of a train or test file: (n, 3072) bytes, all red before green before blue, and a list of labels."""
    try:
        found = _ArraysOnly(io.BytesIO(_verified(content, part, path)), encoding="bytes").load()
        pixels = found[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return {f"{part}_x": np.ascontiguousarray(pixels), f"{part}_y": np.array(found[b"fine_labels"])}
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: {part} does not hold what CIFAR-100 does ({error}). {AGAIN}") from error


class _ArraysOnly(pickle.Unpickler):
    """Allows numpy arrays and plain containers; anything else in a pickle could run code."""

    def find_class(self, module: str, name: str, /) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
