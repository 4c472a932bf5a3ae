"""Progress of long work: a live bar on a terminal, a line now and then in a log, nothing when quiet."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from fscil.runtime.text import duration

LINE_EVERY = 20.0  # seconds between lines where there is no terminal


_title = ""  # of the work that the bars shown now are part of


@contextmanager
def titled(text: str) -> Iterator[None]:
    """Bars made in this block begin with this text: "[3/20] cec, seed 0: training"."""
    global _title
    before, _title = _title, text
    try:
        yield
    finally:
        _title = before


class ProgressBar:
    """Counts towards a total; `note` is free text such as the loss."""

    def __init__(self, what: str, total: int, done: int = 0, quiet: bool = False) -> None:
        what = _title + what
        self._what, self._total, self._first, self._done = what, max(total, 1), done, done
        self._note = ""
        self._began = self._said = time.monotonic()
        self._live: Any = None
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task(what, total=self._total, completed=done, note="")

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self._done += steps
        if note is not None:
            self._note = note
        if self._live is not None:
            self._live.update(self._task, completed=self._done, note=self._note)
        elif not self._quiet and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            rate = (self._done - self._first) / (self._said - self._began)
            left = duration((self._total - self._done) / rate) if rate > 0 else "?"
            print(f"{self._what}: {self._done}/{self._total}, {left} left  {self._note}", file=sys.stderr, flush=True)

    def __enter__(self) -> "ProgressBar":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
