"""miniImageNet as few-shot class-incremental learning splits it: 100 classes, 500 + 100 images each."""

import csv
import re
from pathlib import Path

from fscil.data.images import Dataset, FilePixels, Images
from fscil.data.listing import Listing, checked, read_lines
from fscil.errors import DataError
from fscil.runtime.text import first_few

PLACES = ("images", "images/{label}", "{part}/{label}", "{part}", "{label}", ".")
ORIGIN = (
    "miniImageNet has no official download: it is a selection of ImageNet (ILSVRC-2012); train.csv and test.csv come "
    "with published programs for few-shot class-incremental learning. Expected are DIR/train.csv and DIR/test.csv (or "
    "both in DIR/split) with the columns filename,label, and the images in DIR/images, in DIR/images/<label>, or in "
    "DIR/train/<label> and DIR/test/<label>."
)


def load(root: Path) -> Dataset:
    """Classes in the order of their WordNet ids, images in the order of the csv files."""
    lists = next((folder for folder in (root, root / "split") if (folder / "train.csv").is_file()), None)
    if lists is None:
        raise DataError(f"mini_imagenet: no train.csv in {root} nor {root / 'split'}. {ORIGIN}")
    rows = {part: _rows(lists / f"{part}.csv") for part in ("train", "test")}
    if both := sorted({name for name, _ in rows["train"]} & {name for name, _ in rows["test"]}):
        raise DataError(
            f"mini_imagenet: {len(both)} images are in train.csv and in test.csv (first: {first_few(both)})."
        )
    classes = sorted({label for _, label in rows["train"]})
    if unknown := sorted({label for _, label in rows["test"]} - set(classes)):
        raise DataError(f"mini_imagenet: test.csv has classes that train.csv has not: {first_few(unknown)}.")

    listing, paths, missing = Listing(root), [], []
    for part, entries in rows.items():
        for name, label in entries:
            # A name may include its folder, as in n01532829/n0153282900000005.jpg.
            places = (f"{place.format(part=part, label=label)}/{name}" for place in PLACES)
            path = next((path for path in places if path in listing), None)
            paths.append(path or "")
            if path is None:
                missing.append(name)
    if missing:
        raise DataError(
            f"mini_imagenet: train.csv and test.csv list {len(paths)} files, {len(missing)} are missing under {root} "
            f"(first: {first_few(missing)}). {ORIGIN}"
        )
    number = {label: place for place, label in enumerate(classes)}
    images = Images.of(
        FilePixels(root, [path.removeprefix("./") for path in paths]),
        [number[label] for entries in rows.values() for _, label in entries],
    )
    trains = len(rows["train"])
    return Dataset(
        images.select(range(trains)),
        images.select(range(trains, len(images))),
        tuple(classes),
        "mini_imagenet",
        benchmark=True,
    )


def _rows(path: Path) -> list[tuple[str, str]]:
    """(filename, label) of every line."""
    try:
        return _checked_rows(path)
    except csv.Error as error:  # such as a field of more than 131,072 characters
        raise DataError(f"{path}: not a list of images ({error}).") from error


def _checked_rows(path: Path) -> list[tuple[str, str]]:
    table = csv.DictReader(read_lines(path, ORIGIN))
    if not {"filename", "label"} <= set(table.fieldnames or ()):
        raise DataError(f"{path}: expected the columns filename,label, found {','.join(table.fieldnames or ())}.")
    rows = []
    for row in table:
        name, label = row["filename"] or "", row["label"] or ""
        if not re.fullmatch(r"n\d{8}", label):
            raise DataError(f"{path}, line {table.line_num}: {label!r} is not a WordNet id such as n01532829.")
        rows.append((checked(name, f"{path}, line {table.line_num}"), label))
    if not rows:
        raise DataError(f"{path}: lists no images. {ORIGIN}")
    return rows
