"""How answers are printed: lines for people, JSON or CSV for programs, and tables."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from fscil.errors import DataError

if TYPE_CHECKING:
    from fscil.classifier import Prediction

Writer: TypeAlias = Callable[[Path, "Prediction | DataError"], None]


def text_lines(out: TextIO, top: int) -> Writer:
    def write(path: Path, answer: "Prediction | DataError") -> None:
        if isinstance(answer, DataError):
            print(f"{path}: error: {_reason(path, answer)}", file=out)
            return
        behind = f", {answer.margin:.3f} ahead of {answer.runner_up}" if answer.runner_up else ""
        near = f" (nearest: {answer.ranking[0][0]})" if answer.label is None and answer.ranking else ""
        print(f"{path}: {answer.label or 'unknown'}{near}  {answer.score:.3f}{behind}", file=out)
        for name, score in answer.ranking if top > 1 else ():
            print(f"    {score:.3f}  {name}", file=out)

    return write


def json_lines(out: TextIO, top: int) -> Writer:
    def write(path: Path, answer: "Prediction | DataError") -> None:
        content = {"error": _reason(path, answer)} if isinstance(answer, DataError) else asdict(answer)
        print(json.dumps({"image": str(path), **content}), file=out)

    return write


def csv_lines(out: TextIO, top: int) -> Writer:
    """An empty label is "unknown", where there is no error."""
    table = csv.writer(out, lineterminator="\n")
    ranks = [f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "score")] if top > 1 else []
    table.writerow(["image", "label", "score", "runner_up", "margin", "error", *ranks])

    def write(path: Path, answer: "Prediction | DataError") -> None:
        if isinstance(answer, DataError):
            table.writerow([path, "", "", "", "", _reason(path, answer), *([""] * len(ranks))])
            return
        ranking = [cell for name, score in answer.ranking for cell in (name, f"{score:.6f}")] if top > 1 else []
        row = [path, answer.label or "", f"{answer.score:.6f}", answer.runner_up or "", f"{answer.margin:.6f}", ""]
        table.writerow([*row, *ranking, *([""] * (len(ranks) - len(ranking)))])

    return write


def _reason(path: Path, error: DataError) -> str:
    return str(error).removeprefix(f"{path}: ")


def count(number: int, one: str, many: str | None = None) -> str:
    """1 photo, 2 photos."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, whatever is in its cells."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column)
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))  # as text: a name may look like markup
    Console(width=None if sys.stdout.isatty() else 132, highlight=False).print(grid, crop=False)
