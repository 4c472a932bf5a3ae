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
    from fscil.classifier import Check, Prediction, Thresholds
    from fscil.classifier.checking import ClassCheck

CSV_COLUMNS = (
    *("image", "label", "score", "runner_up", "margin", "error"),
    *("probability", "unknown_probability", "state"),
)
WIDEST_NAME = 40  # characters, of the first column of a table, that are not broken into lines
Writer: TypeAlias = Callable[[Path, "Prediction | DataError"], None]  # prints one photo's


def text_lines(out: TextIO, top: int) -> Writer:
    """For people; with a top above 1 the ranking below each photo."""

    def write(path: Path, answer: "Prediction | DataError") -> None:
        if isinstance(answer, DataError):
            print(printable(f"{path}: error: {_reason(path, answer)}"), file=out)
            return
        print(printable(f"{path}: {verdict(answer)}  {how_sure(answer)}"), file=out)
        numbers = [f"{value:.1%}" for value in answer.probabilities] or [f"{score:.3f}" for _, score in answer.ranking]
        for number, (name, _) in zip(numbers, answer.ranking, strict=True) if top > 1 else ():
            print(printable(f"    {number}  {name}"), file=out)

    return write


def verdict(answer: "Prediction") -> str:
    if answer.state == "unknown":
        return f"unknown (nearest: {answer.ranking[0][0]})" if answer.ranking else "unknown"
    return f"maybe {answer.label}" if answer.state == "maybe" else f"{answer.label}"


def how_sure(answer: "Prediction") -> str:
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


def describe_thresholds(found: "Thresholds") -> str:
    """In a line."""
    return (
        f"unknown: above a probability of {found.unknown:.3g}; known: from {found.known:.3g} for the class on; "
        f"between: maybe"
    )


def json_lines(out: TextIO, top: int) -> Writer:
    """One object per line."""

    def write(path: Path, answer: "Prediction | DataError") -> None:
        content = {"error": _reason(path, answer)} if isinstance(answer, DataError) else asdict(answer)
        print(json.dumps({"image": str(path), **content}), file=out)

    return write


def csv_lines(out: TextIO, top: int) -> Writer:
    """With a header. An empty label means unknown, where there is no error."""
    table = csv.writer(out, lineterminator="\n")
    table.writerow(csv_columns(top))
    return lambda path, answer: table.writerow(csv_row(path, answer, top))


def csv_columns(top: int) -> list[str]:
    return [*CSV_COLUMNS, *(f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "score") if top > 1)]


def csv_row(path: Path, answer: "Prediction | DataError", top: int) -> list[str]:
    """One cell per column, none with a line break."""
    if isinstance(answer, DataError):
        row = [csv_text(path), "", "", "", "", csv_text(_reason(path, answer))]
    else:
        ranked = answer.ranking if top > 1 else ()
        ranking = [cell for name, score in ranked for cell in (csv_text(name), f"{score:.6f}")]
        names = [csv_text(text) for text in (path, answer.label or "", answer.runner_up or "")]
        sure = ["" if value is None else f"{value:.6f}" for value in (answer.probability, answer.unknown_probability)]
        row = [*names[:2], f"{answer.score:.6f}", names[2], f"{answer.margin:.6f}", "", *sure, answer.state, *ranking]
    return row + [""] * (len(csv_columns(top)) - len(row))


def _reason(path: Path, error: DataError) -> str:
    return str(error).removeprefix(f"{path}: ")


def check_figures(found: "Check") -> dict[str, Any]:
    """Without the single photos."""
    return {
        "photos": found.photos,
        "accuracy": found.accuracy,
        "unknown": found.unknown,
        "maybe": found.maybe,
        "rejected": found.rejected,
        "learned": found.learned,
        "classes": [asdict(each) for each in found.classes],
        "not_enrolled": [asdict(each) for each in found.not_enrolled],
        "confused": [list(pair) for pair in found.confused],
        "skipped": list(found.skipped),
    }


def print_checked_photos(found: "Check", out: TextIO) -> None:
    """CSV with a line per photo."""
    table = csv.writer(out, lineterminator="\n")
    wrong = {id(each) for each in found.mistakes}
    table.writerow(["image", "true", "label", "state", "probability", "unknown_probability", "correct"])
    for each in found.answers:
        answer = each.answer
        sure = ["" if value is None else f"{value:.6f}" for value in (answer.probability, answer.unknown_probability)]
        names = [csv_text(text) for text in (each.path, each.true, answer.label or "")]
        table.writerow([*names, answer.state, *sure, "no" if id(each) in wrong else "yes"])


def print_check(found: "Check") -> None:
    """Tables of classes and confused pairs, and totals; warns of photos that were left out or learned."""
    if found.learned:
        warnings.warn(
            f"{found.learned} of the {len(found.answers)} photos are enrolled in the model: on these it does better "
            f"than on new ones. fscil fit says how it does on photos that are held out.",
            FscilWarning,
            stacklevel=2,
        )
    for message in found.skipped:
        warnings.warn(f"{message}: left out", FscilWarning, stacklevel=2)
    groups = (("class", found.classes, "correct"), ("not enrolled", found.not_enrolled, "unknown, as they should be"))
    for title, group, right in groups:
        if group:
            table(
                [title, "photos", right, "unknown", "maybe"],
                [[each.name, each.photos, *(f"{part:.1%}" for part in _shares(each))] for each in group],
            )
    if found.confused:
        table(["most confused", "taken for", "photos"], found.confused[:10])
    if found.accuracy is not None:
        shares = f"accuracy {found.accuracy:.1%}, unknown {found.unknown:.1%}, maybe {found.maybe:.1%}"
        say(f"{shares}, of {count(found.photos, 'photo')}")
    if found.unknown:
        _say_without_unknown(found)
    if found.rejected is not None:
        photos = sum(each.photos for each in found.not_enrolled)
        say(f"unknown {found.rejected:.1%} of {count(photos, 'photo')} of classes that are not enrolled")


def _say_without_unknown(found: "Check") -> None:
    """A known photo that is called unknown counts as wrong here, and does not in the accuracy that fscil fit prints."""
    names = {each.name for each in found.classes}
    asked = [each for each in found.answers if each.true in names]
    nearest = sum(each.answer.ranking[0][0] == each.true for each in asked if each.answer.ranking)
    named = [each.correct for each in asked if each.answer.label is not None]
    if named:
        say(f"right {sum(named) / len(named):.1%} of those that got a name")
    if asked:
        say(
            f"right {nearest / len(asked):.1%} of all, if none were called unknown (the accuracy that fscil fit prints)"
        )


def _shares(each: "ClassCheck") -> tuple[float, float, float]:
    return each.accuracy, each.unknown / each.photos, each.maybe / each.photos


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, whatever is in its cells."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        # The first has names, to be typed as they are; a long one must leave room for the others.
        in_one_line = place == 0 and all(len(row[0]) <= WIDEST_NAME for row in cells)
        grid.add_column(column, no_wrap=in_one_line, overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))  # as text: a name may look like markup
    Console(width=None if sys.stdout.isatty() else 132, highlight=False).print(grid, crop=False)
