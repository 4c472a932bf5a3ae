"""CUB-200-2011: 11,788 photographs of 200 bird species, in its official layout."""

from pathlib import Path

import numpy as np

from fscil.data.images import Dataset, FilePixels, Images, Ints
from fscil.data.listing import Listing, checked, read_lines
from fscil.errors import DataError
from fscil.runtime.text import first_few

FOLDER = "CUB_200_2011"


def load(root: Path) -> Dataset:
    """root: the folder with images.txt, or the one that holds CUB_200_2011. Images in the order of images.txt."""
    fetch = f'Run "fscil data cub200 --root {root} --download" to fetch'
    home = root if (root / "images.txt").is_file() else root / FOLDER
    if not (home / "images.txt").is_file():
        raise DataError(f"cub200: neither {root} nor {home} has an images.txt. {fetch} the data set (1.2 GB).")
    listed = _column(home / "images.txt", fetch)
    paths = [checked(path, str(home / "images.txt")) for path in listed.values()]
    labels = _numbers(home / "image_class_labels.txt", list(listed), fetch)
    trains = _numbers(home / "train_test_split.txt", list(listed), fetch)

    listing = Listing(home / "images")
    if missing := [path for path in paths if path not in listing]:
        raise DataError(
            f"cub200: images.txt lists {len(paths)} files, {len(missing)} are missing under {home / 'images'} "
            f"(first: {first_few(missing)}). {fetch} them."
        )
    images = Images.of(FilePixels(home / "images", paths), labels - 1)
    names = _class_names(paths, labels, home)
    return Dataset(images.select(trains != 0), images.select(trains == 0), names, "cub200", benchmark=True)


def _column(path: Path, fetch: str) -> dict[str, str]:
    """Image number -> value, of a file with "number value" on each line."""
    column: dict[str, str] = {}
    for place, line in enumerate(read_lines(path, f"{fetch} it."), 1):
        key, _, value = line.strip().partition(" ")
        if not value or key in column:
            raise DataError(f'{path}, line {place}: expected "number value" with a new number, found {line!r}.')
        column[key] = value
    return column


def _numbers(path: Path, keys: list[str], fetch: str) -> Ints:
    """(n,) the values of a file of whole numbers, in the order of these image numbers."""
    column = _column(path, fetch)
    if column.keys() != set(keys):
        raise DataError(f"{path} lists {len(column)} images, images.txt {len(keys)}, or other ones. {fetch} both.")
    try:
        return np.array([int(column[key]) for key in keys], np.int64)
    except (ValueError, OverflowError):
        raise DataError(f"{path}: has values that are not whole numbers, or too large. {fetch} it again.") from None


def _class_names(paths: list[str], labels: Ints, home: Path) -> tuple[str, ...]:
    """Black footed Albatross, from 001.Black_footed_Albatross/…; the first species has label 1."""
    folders = {label: path.partition("/")[0] for path, label in zip(paths, labels.tolist(), strict=True)}
    if sorted(folders) != list(range(1, len(folders) + 1)):
        raise DataError(f"{home / 'image_class_labels.txt'}: species are not numbered 1, 2, 3, … without a gap.")
    return tuple(folders[label].partition(".")[2].replace("_", " ") for label in sorted(folders))
