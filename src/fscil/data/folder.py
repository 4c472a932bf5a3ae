"""A user's own images: one folder per class, with or without a train and a test part."""

import hashlib
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias
from unicodedata import normalize

from fscil.data.images import HEIC_SUFFIXES, SUFFIXES, Dataset, FilePixels, Images, heic_advice, reads_heic
from fscil.data.label_list import label_list, read_label_list
from fscil.data.unread import KINDS, warn_of_unread
from fscil.errors import DataError, FscilWarning
from fscil.runtime.text import first_few

Files: TypeAlias = dict[str, list[str]]  # class name -> paths relative to the root

LAYOUT = "Expected are DIR/<class>/<images>, or DIR/train/<class>/<images> and DIR/test/<class>/<images>."


def load(root: Path, test_share: float = 0.2, seed: int = 0) -> Dataset:
    """root/<class>/* or root/{train,test}/<class>/*; without a test part, a share of each class is held out."""
    if not 0 < test_share < 1:
        raise DataError(f"folder: test_share = {test_share}: must be between 0 and 1.")
    places = parts(root)
    train = _some_classes(root, places.get("train", root))
    test = _classes(root, places["test"]) if "test" in places else {}
    if unknown := sorted(test.keys() - train.keys()):
        raise DataError(
            f"folder: test/ has classes that train/ has not: {first_few(unknown)}. Add training images of them."
        )
    if not test:
        test = {name: _held_out(files, test_share, seed) for name, files in train.items()}
        train = {name: sorted({*files} - {*test[name]}) for name, files in train.items()}

    # All files are one store in one order, so that another share or seed finds the same decoded pixels.
    names = sorted(train)
    number = {name: place for place, name in enumerate(names)}
    entries = sorted((file, number[name]) for part in (train, test) for name in part for file in part[name])
    row = {file: place for place, (file, _) in enumerate(entries)}
    images = Images.of(FilePixels(root, list(row)), [label for _, label in entries])
    return Dataset(
        images.select([row[file] for name in names for file in train[name]]),
        images.select([row[file] for name in names for file in test.get(name, [])]),
        tuple(names),
        "folder",
    )


def whole(root: Path) -> Dataset:
    """Every image is for training: root/<class>/*, or root/train/<class>/* where there are parts.

    Where root is a list of labelled photos or has one, those; see `label_list`.
    """
    listed = label_list(root)
    if listed:
        return _listed(listed)
    files = _some_classes(root, parts(root).get("train", root))
    names = sorted(files)
    entries = sorted((file, number) for number, name in enumerate(names) for file in files[name])
    images = Images.of(FilePixels(root, [file for file, _ in entries]), [label for _, label in entries])
    return Dataset(images, images.select([]), tuple(names), "folder")


def _listed(file: Path) -> Dataset:
    """In the order of the list."""
    found = read_label_list(file)
    names = sorted({name for _, name in found})
    root = file.parent
    inside = [path.relative_to(root) if path.is_relative_to(root) else path.absolute() for path, _ in found]
    labels = [names.index(name) for _, name in found]
    images = Images.of(FilePixels(root, [path.as_posix() for path in inside]), labels)
    return Dataset(images, images.select([]), tuple(names), "folder")


def parts(root: Path) -> dict[str, Path]:
    """The train and test folders, if that is the layout: train/ holds folders and no images of its own."""
    folders = _subfolders(root)
    if "train" not in folders or images_in(_names(folders["train"]), SUFFIXES + HEIC_SUFFIXES):
        return {}
    found: dict[str, Path] = {name: folders.pop(name) for name in ("train", "test") if name in folders}
    if folders and "test" in found:
        warnings.warn(
            f"folder: only train/ and test/ of {root} are read, not {first_few(list(folders))}.", FscilWarning, 4
        )
    elif folders:
        raise DataError(
            f"folder: {root} has train/ beside {first_few(list(folders))}, but no test/. If one of them is the test "
            f"part, rename it to test; if train is the name of a class, put its images directly into train/. {LAYOUT}"
        )
    return found


def _subfolders(root: Path) -> dict[str, Path]:
    """Visible folders by name; a link to a folder above would make one class of everything."""
    here = root.resolve()
    paths = {name: root / name for name in _names(root) if not name.startswith(".")}
    return {name: path for name, path in paths.items() if path.is_dir() and not here.is_relative_to(path.resolve())}


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise DataError(f"folder: {folder} cannot be read ({error.strerror}). {LAYOUT}") from error


def _some_classes(root: Path, part: Path) -> Files:
    found = _classes(root, part)
    if not found:
        raise DataError(f"folder: no class folder with images in {part}. {LAYOUT}")
    return found


def _classes(root: Path, part: Path) -> Files:
    """The images of each class, in order of their paths. Names are composed Unicode (NFC): macOS decomposes them."""
    suffixes = SUFFIXES + HEIC_SUFFIXES if reads_heic() else SUFFIXES
    classes: Files = {}
    skipped: list[str] = []
    below: dict[str, list[str]] = {}  # class -> folders in it that hold images
    for name, folder in _subfolders(part).items():
        files = classes.setdefault(normalize("NFC", name), [])
        for here, inside in walk(folder):
            place = here.relative_to(root).as_posix()
            if mine := images_in(inside, suffixes):
                files += [f"{place}/{file}" for file in mine]
                below.setdefault(name, []).append(place)
            skipped += [f"{place}/{file}" for file in images_in(inside, tuple(KINDS))]
    skipped = [file for file in skipped if not file.lower().endswith(suffixes)]
    heic = any(file.lower().endswith(HEIC_SUFFIXES) for file in skipped)
    warn_of_unread(skipped, f". {heic_advice()}" if heic else "", stacklevel=4)
    notice_nested(part, below)
    if empty := [name for name, files in classes.items() if not files]:
        warnings.warn(f"folder: {part} has folders without images: {first_few(empty)}.", FscilWarning, stacklevel=4)
    return {name: sorted(files) for name, files in classes.items() if files}


def notice_nested(part: Path, below: dict[str, list[str]]) -> None:
    """A warning where most folders look like groups of classes: no image of their own, but folders with images.

    below: by class the folders that hold its images, as paths from the root, the class folder itself first.
    """
    groups = [name for name, folders in below.items() if folders[0].rpartition("/")[2] != name]
    total = sum(map(len, below.values()))
    if any(len(below[name]) > 1 for name in groups) and 2 * len(groups) > len(below):
        warnings.warn(
            f"folder: {part} is read as {len(below)} classes, but their images lie in {total} folders below them "
            f"({first_few(sorted(itertools.chain(*below.values())))}). If these are the classes, "
            f"move them up into one folder, or give one of {first_few(groups)} as the folder.",
            FscilWarning,
            stacklevel=5,
        )


def walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and all visible ones below it, each with the names of its files; links to folders are not followed."""
    for here, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield Path(here), files


def images_in(names: Iterable[str], suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
    """Of these file names, the visible ones that end like this."""
    return [name for name in names if name.lower().endswith(suffixes) and not name.startswith(".")]


def _raise(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror}).") from error


def _held_out(files: list[str], share: float, seed: int) -> list[str]:
    """The images whose seeded hash is smallest, so that another class or image hardly changes the choice."""

    def rank(file: str) -> bytes:
        return hashlib.sha256(f"{seed}/{normalize('NFC', file)}".encode(errors="surrogateescape")).digest()

    count = min(max(1, round(share * len(files))), len(files) - 1)
    return sorted(sorted(files, key=rank)[:count])
