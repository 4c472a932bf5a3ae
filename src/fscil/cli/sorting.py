"""Batch work of fscil predict: photos sorted into class folders, a record to resume from, folders that fill."""

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fscil.cli.record import Record
from fscil.runtime.files import cannot_write
from fscil.runtime.text import csv_text

if TYPE_CHECKING:
    from fscil.classifier import Prediction

RECORD = "predictions.csv"
COLUMNS = ("image", "state", "label", "probability", "unknown_probability", "file")
POLL_SECONDS = 1.0


class Sorter:
    """Copies or links photos into DIR/CLASS, DIR/maybe/CLASS and DIR/unknown, and records each in DIR/predictions.csv.

    What the record has is skipped next time. A photo is copied under another name first, so that none is half there.
    """

    def __init__(self, folder: Path, link: bool = False) -> None:
        self.folder, self._link = folder, link
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        self._record = Record(folder / RECORD, COLUMNS, "fscil predict --sort-into", "Choose another folder.")
        self.done = {row[0] for row in self._record.rows if len(row) == len(COLUMNS)}

    def add(self, path: Path, answer: "Prediction") -> Path:
        """Sort one photo. Returns where it is now."""
        target = put(path, self._folder_of(answer), self._link)
        sure = ["" if value is None else f"{value:.6f}" for value in (answer.probability, answer.unknown_probability)]
        texts = (os.fspath(path.resolve()), answer.state, answer.label or "")
        place = target.relative_to(self.folder).as_posix()
        self._record.add([[*(csv_text(text) for text in texts), *sure, csv_text(place)]])
        self.done.add(csv_text(os.fspath(path.resolve())))
        return target

    def _folder_of(self, answer: "Prediction") -> Path:
        if answer.label is None:
            return self.folder / "unknown"
        name = folder_name(answer.label)
        return self.folder / "maybe" / name if answer.state == "maybe" else self.folder / name

    def todo(self, paths: Sequence[Path]) -> list[Path]:
        """Those that are not in the record, nor in the folder itself."""
        own = self.folder.resolve()
        resolved = [(path, path.resolve()) for path in paths]
        return [
            path
            for path, full in resolved
            if csv_text(os.fspath(full)) not in self.done and not full.is_relative_to(own)
        ]


def put(path: Path, folder: Path, link: bool = False) -> Path:
    """Copy or link a photo into a folder, under a free name. Returns where it is now."""
    target = _free_name(folder, path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        if link:
            part.symlink_to(path.resolve())
        else:
            shutil.copy2(path, part)
        part.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    return target


def folder_name(label: str) -> str:
    """A class name as the name of a folder: no separators, no leading dot, none of the two that have a meaning here."""
    safe = "".join("_" if letter in '/\\:*?"<>|' else letter for letter in label).strip()
    safe = f"_{safe[1:]}" if safe.startswith(".") else safe
    return f"{safe}_" if safe.casefold() in ("unknown", "maybe", RECORD) else safe


def arriving(
    list_photos: Callable[[], Sequence[Path]],
    seen: Collection[Path] = (),
    wait: Callable[[], Any] = lambda: time.sleep(POLL_SECONDS),
) -> Iterator[list[Path]]:
    """Again and again the photos that are new and complete: of the same size and time in two looks one wait apart."""
    done, before = set(seen), dict[Path, tuple[int, int]]()
    while True:
        now = {path: state for path in list_photos() if path not in done and (state := _state(path))}
        ready = [path for path, state in now.items() if before.get(path) == state]
        if ready:
            yield ready
            done.update(ready)
        before = now
        wait()


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # removed meanwhile
        return None
    return found.st_size, found.st_mtime_ns


def _free_name(folder: Path, name: str) -> Path:
    """Two photos of one name from two folders must not replace each other."""
    target, number = folder / name, 1
    while os.path.lexists(target):
        number += 1
        target = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    return target
