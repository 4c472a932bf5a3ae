"""Progress of long work: a live bar on a terminal, a line now and then in a log, nothing when told so."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

LINE_EVERY = 20.0  # seconds between lines where there is no terminal


def clock(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 10 min, 4.2 days."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{seconds / 86400:.1f} days"


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


class Bar:
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
            left = clock((self._total - self._done) / rate) if rate > 0 else "?"
            print(f"{self._what}: {self._done}/{self._total}, {left} left  {self._note}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Bar":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
