"""A record of finished work that survives a kill: a CSV file that grows by whole lines, so that work can be resumed."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fscil.errors import StoreError
from fscil.runtime.files import cannot_write
from fscil.runtime.regular_files import read_regular

MAX_BYTES = 2**30  # millions of photos


class Record:
    """rows: those that are complete. What a killed writer left of a line, perhaps half a letter, is cut off."""

    def __init__(self, path: Path, columns: Sequence[str], of: str, advice: str) -> None:
        """of: the command whose record it is, and advice what to do, for the error where the file is another one."""
        self.path, self._columns, self._of, self._advice = path, list(columns), of, advice
        try:
            self.rows = self._read() if path.exists() else []
        except OSError as error:
            raise cannot_write(path, error) from error

    def add(self, rows: Iterable[Sequence[str]]) -> None:
        """No cell has a line break."""
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                table = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    table.writerow(self._columns)
                table.writerows(rows)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _read(self) -> list[list[str]]:
        content = read_regular(self.path, MAX_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        try:
            lines = csv.reader(io.StringIO(whole.decode("utf-8"), newline=""))
            header, *rows = lines if whole else [self._columns]
        except (csv.Error, UnicodeDecodeError) as error:
            raise self._another(f" ({error})") from error
        if header != self._columns or not (whole or ",".join(self._columns).encode().startswith(content)):
            raise self._another()
        if content != whole:
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return rows

    def _another(self, why: str = "") -> StoreError:
        return StoreError(f"{self.path}: is not a record of {self._of}{why}. {self._advice}")
