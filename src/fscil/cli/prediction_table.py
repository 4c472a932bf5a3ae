"""The table of fscil predict --out FILE: continued after an interruption, written when it is complete."""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fscil.cli.output import CSV_COLUMNS, csv_columns, csv_row
from fscil.cli.record import MAX_BYTES, Record
from fscil.errors import DataError, StoreError
from fscil.runtime.files import cannot_write, write_bytes
from fscil.runtime.regular_files import read_regular
from fscil.runtime.text import csv_text

if TYPE_CHECKING:
    from fscil.classifier import Prediction

# Of a row in FILE.part, before the cells of the table: the photo's file when it was read, what answered, and how many
# rows of its batch follow. What the network computes depends in the last digits on the batch: only whole ones count.
KEYS = ("size", "modified", "answered_by", "following")
HEADER = ",".join(CSV_COLUMNS).encode()
STATE, ERROR = CSV_COLUMNS.index("state"), CSV_COLUMNS.index("error")


class PredictionTable:
    """Rows go to FILE.part as they are answered; `write` makes the table of them and removes it.

    A row there is of use if the photo's file and what answers are the same as then.
    """

    def __init__(self, path: Path, top: int, answered_by: Mapping[str, Any]) -> None:
        """answered_by: all that answers depend on beside the photo, as JSON values."""
        self.path, self._top = path, top
        self._by = hashlib.sha256(json.dumps([top, answered_by], sort_keys=True).encode()).hexdigest()[:16]
        _require_table(path)
        part, command = path.with_name(f"{path.name}.part"), "fscil predict --out"
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        self._record = Record(part, KEYS, command, "Delete it, or choose another --out.")
        rows = self._record.rows
        while rows and rows[-1][len(KEYS) - 1 : len(KEYS)] != ["0"]:
            rows.pop()
        own = [row for row in rows if len(row) == len(KEYS) + len(csv_columns(top)) and row[2] == self._by]
        self.outdated = len(rows) - len(own)  # rows by another model or with other options
        self._rows = {row[len(KEYS)]: row for row in own}
        self._files: dict[Path, list[str]] = {}

    def todo(self, paths: Sequence[Path]) -> list[Path]:
        """Those without an answer, and those that have changed since."""
        self._files = {path: _file_key(path) for path in paths}  # before they are read
        return [path for path in paths if self._rows.get(csv_text(path), [])[:2] != self._files[path]]

    def add(self, batch: Sequence[tuple[Path, "Prediction | DataError"]]) -> None:
        """The answers to a batch of what is to do."""
        after = range(len(batch) - 1, -1, -1)
        rows = [
            [*self._files[path], self._by, str(following), *csv_row(path, answer, self._top)]
            for (path, answer), following in zip(batch, after, strict=True)
        ]
        self._record.add(rows)
        self._rows |= {row[len(KEYS)]: row for row in rows}

    def write(self, paths: Sequence[Path]) -> dict[str, int]:
        """The table, in the order of the photos. Returns how many are known, maybe, unknown, and cannot be read."""
        cells = [self._rows[csv_text(path)][len(KEYS) :] for path in paths]
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([csv_columns(self._top), *cells])
        write_bytes(self.path, text.getvalue().encode())
        self._record.path.unlink(missing_ok=True)
        states = [row[STATE] if not row[ERROR] else "cannot be read" for row in cells]
        return {state: states.count(state) for state in ("known", "maybe", "unknown", "cannot be read")}


def _require_table(path: Path) -> None:
    """What is replaced in the end is a table of before, and nothing else."""
    try:
        if path.exists():
            begin = read_regular(path, MAX_BYTES)[: len(HEADER)]
            if begin not in (HEADER, b""):
                raise StoreError(f"{path}: exists and is not a table of fscil predict. Choose another --out.")
    except OSError as error:
        raise cannot_write(path, error) from error


def _file_key(path: Path) -> list[str]:
    try:
        found = path.stat()
    except OSError:  # not there: its row says so
        return ["", ""]
    return [str(found.st_size), str(found.st_mtime_ns)]
