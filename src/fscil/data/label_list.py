"""A list of labelled photos as CSV: a header, then a path and a class per line."""

import csv
from pathlib import Path
from unicodedata import normalize

from fscil.errors import DataError

NAME = "labels.csv"  # in a folder of photos, it says what they show
PATHS = ("path", "image", "file", "filename", "photo")
LABELS = ("label", "class", "name", "species")
EXPECTED = f"Expected is a header with one of {', '.join(PATHS)} and one of {', '.join(LABELS)}."


def label_list(place: Path) -> Path | None:
    """The list that a place is or has."""
    if place.is_file() and place.suffix.lower() == ".csv":
        return place
    return place / NAME if (place / NAME).is_file() else None


def read_label_list(file: Path) -> list[tuple[Path, str]]:
    """Photos and classes, in the order of the list. Paths are relative to the list, or to images/ beside it."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = list(csv.reader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as CSV ({error}).") from error
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    path_at, label_at = (
        next((header.index(name) for name in names if name in header), None) for names in (PATHS, LABELS)
    )
    if path_at is None or label_at is None:
        raise DataError(f"{file}: its first line names no path or no label. {EXPECTED}")
    found = []
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) <= max(path_at, label_at) or not row[path_at].strip() or not row[label_at].strip():
            raise DataError(f"{file}: line {number} has no path or no label.")
        found.append((_photo(file.parent, row[path_at].strip(), f"{file}: line {number}"), _class(row[label_at])))
    if not found:
        raise DataError(f"{file}: no photo in it. {EXPECTED}")
    return found


def _class(cell: str) -> str:
    return normalize("NFC", cell.strip())


def _photo(folder: Path, name: str, where: str) -> Path:
    try:
        path = Path(name).expanduser()
        for place in (folder / path, folder / "images" / path):
            if place.is_file():
                return place
    except (OSError, RuntimeError) as error:  # a name that is too long, or ~ of a user who is not there
        raise DataError(f"{where}: no file can have the path {name[:100]!a} ({error.__class__.__name__}).") from error
    raise DataError(f"{where}: there is no file {folder / path}.")
