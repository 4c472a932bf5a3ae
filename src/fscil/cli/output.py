"""How predictions and checks are printed: lines for people, JSON or CSV for programs, and tables."""

import csv
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from fscil.cli.options import say
from fscil.errors import DataError, FscilWarning
from fscil.runtime.text import count, csv_text, printable

if TYPE_CHECKING:
    from fscil.classifier import Check, Prediction

Writer: TypeAlias = Callable[[Path, "Prediction | DataError"], None]  # prints one photo's


def text_lines(out: TextIO, top: int) -> Writer:
    """For people; with a top above 1 the ranking below each photo."""

    def write(path: Path, answer: "Prediction | DataError") -> None:
        if isinstance(answer, DataError):
            print(printable(f"{path}: error: {_reason(path, answer)}"), file=out)
            return
        near = f" (nearest: {answer.ranking[0][0]})" if answer.label is None and answer.ranking else ""
        print(printable(f"{path}: {answer.label or 'unknown'}{near}  {_how_sure(answer)}"), file=out)
        numbers = [f"{value:.1%}" for value in answer.probabilities] or [f"{score:.3f}" for _, score in answer.ranking]
        for number, (name, _) in zip(numbers, answer.ranking, strict=True) if top > 1 else ():
            print(printable(f"    {number}  {name}"), file=out)

    return write


def _how_sure(answer: "Prediction") -> str:
    """Probabilities, or the cosine where there are none."""
    if answer.unknown_probability is None:
        behind = f", {answer.margin:.3f} ahead of {answer.runner_up}" if answer.runner_up else ""
        return f"{answer.score:.3f}{behind}"
    if answer.probability is None:
        return f"{answer.unknown_probability:.1%}"
    if answer.label is None:
        return f"{answer.unknown_probability:.1%}, nearest {answer.probability:.1%}"
    second = f", then {answer.runner_up}" if answer.runner_up else ""
    return f"{answer.probability:.1%}{second}, unknown {answer.unknown_probability:.1%}"


def json_lines(out: TextIO, top: int) -> Writer:
    """One object per line."""

    def write(path: Path, answer: "Prediction | DataError") -> None:
        content = {"error": _reason(path, answer)} if isinstance(answer, DataError) else asdict(answer)
        print(json.dumps({"image": str(path), **content}), file=out)

    return write


def csv_lines(out: TextIO, top: int) -> Writer:
    """With a header. An empty label means unknown, where there is no error."""
    table = csv.writer(out, lineterminator="\n")
    ranks = [f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "score")] if top > 1 else []
    columns = ["label", "score", "runner_up", "margin", "error", "probability", "unknown_probability"]
    table.writerow(["image", *columns, *ranks])

    def write(path: Path, answer: "Prediction | DataError") -> None:
        if isinstance(answer, DataError):
            reason = csv_text(_reason(path, answer))
            table.writerow([csv_text(path), "", "", "", "", reason, "", "", *([""] * len(ranks))])
            return
        ranked = answer.ranking if top > 1 else ()
        ranking = [cell for name, score in ranked for cell in (csv_text(name), f"{score:.6f}")]
        names = [csv_text(text) for text in (path, answer.label or "", answer.runner_up or "")]
        row = [*names[:2], f"{answer.score:.6f}", names[2], f"{answer.margin:.6f}", ""]
        sure = ["" if value is None else f"{value:.6f}" for value in (answer.probability, answer.unknown_probability)]
        table.writerow([*row, *sure, *ranking, *([""] * (len(ranks) - len(ranking)))])

    return write


def _reason(path: Path, error: DataError) -> str:
    return str(error).removeprefix(f"{path}: ")


def print_check(found: "Check") -> None:
    """Tables of classes and confused pairs, and totals; warns of photos that were left out."""
    for message in found.skipped:
        warnings.warn(f"{message}: left out", FscilWarning, stacklevel=2)
    groups = (("class", found.classes, "correct"), ("not enrolled", found.not_enrolled, "unknown, as they should be"))
    for title, group, right in groups:
        if group:
            table(
                [title, "photos", right, "unknown"],
                [
                    [each.name, each.photos, f"{each.accuracy:.1%}", f"{each.unknown / each.photos:.1%}"]
                    for each in group
                ],
            )
    if found.confused:
        table(["most confused", "taken for", "photos"], found.confused[:10])
    if found.accuracy is not None:
        say(f"accuracy {found.accuracy:.1%}, unknown {found.unknown:.1%}, of {count(found.photos, 'photo')}")
    if found.rejected is not None:
        photos = sum(each.photos for each in found.not_enrolled)
        say(f"unknown {found.rejected:.1%} of {count(photos, 'photo')} of classes that are not enrolled")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, whatever is in its cells."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column)
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))  # as text: a name may look like markup
    Console(width=None if sys.stdout.isatty() else 132, highlight=False).print(grid, crop=False)
