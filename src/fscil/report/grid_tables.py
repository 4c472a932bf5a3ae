"""The accuracy tables of a grid: per row our numbers, the paper's where it has some, and the difference."""

from collections.abc import Sequence

from fscil.experiments.published import ABLATION_SETTING, paper_ablation, paper_rows
from fscil.report.blocks import RowKind, Table
from fscil.report.collect import Results, Row
from fscil.report.numbers import cell
from fscil.report.provenance import cross_entropy
from fscil.report.run_tables import MEASURES
from fscil.report.summary import best_cells

SOURCES = {"reported": "as reported in the paper", "rerun": "rerun by the paper's authors", "paper": "the paper's own"}


def accuracy_table(results: Results, shots: int, measure: str) -> Table:
    """measure: average or harmonic, which begins at session 1."""
    rows = results.with_shots(shots)
    last = max(row.sessions(shots)[-1] for row in rows)
    sessions = range(last + 1) if measure == "average" else range(1, last + 1)
    body = [line for row in rows for line in _lines(results, row, shots, measure, sessions)]
    columns = [[row.accuracy(shots, session, measure) for row in rows] for session in sessions]
    ours = [number for number, (kind, _) in enumerate(body) if kind == "ours"]
    best = frozenset((ours[row], column) for row, column in best_cells(columns))
    header = ["", *map(str, sessions), *(["PD"] if measure == "average" else [])]
    title = f"{MEASURES[measure].partition(' (')[0].capitalize()}, {shots}-shot"
    return Table(title, header, body, [*training_notes(rows), *filter(None, [cross_entropy(results)])], best=best)


def _lines(
    results: Results, row: Row, shots: int, measure: str, sessions: Sequence[int]
) -> list[tuple[RowKind, Sequence[str]]]:
    """Our row and, for each of the paper's on the same method, its row and the difference."""
    ours = [row.accuracy(shots, session, measure) for session in sessions]
    ours += [row.performance_drop(shots)] if measure == "average" else []
    lines: list[tuple[RowKind, Sequence[str]]] = [("ours", [row.title, *map(cell, ours)])]
    for label, values in _published(results, row, shots, measure, len(sessions)):
        theirs = [*values, values[0] - values[-1]] if measure == "average" else values
        lines.append(("paper", [label, *(f"{value:.1f}" for value in theirs)]))
        differences = [f"{one.mean - value:+.1f}" if one else "-" for one, value in zip(ours, theirs, strict=True)]
        lines.append(("difference", ["difference", *differences]))
    return lines


def _published(results: Results, row: Row, shots: int, measure: str, count: int) -> list[tuple[str, list[float]]]:
    """The paper's numbers for the same row, under the paper's name and their source, if it has as many sessions."""
    data = results.about["data"]
    rows = []
    if results.kind == "bench":
        rows = [(f"{one['label']}, {SOURCES[one['source']]}", one) for one in paper_rows(data, shots, row.method)]
    elif results.kind == "ablation" and (data, shots) == ABLATION_SETTING and row.label in paper_ablation():
        rows = [(f"{row.label}, the paper's", paper_ablation()[row.label])]
    return [(label, one[measure]) for label, one in rows if len(one.get(measure, ())) == count]


def training_notes(rows: Sequence[Row]) -> list[str]:
    """Which rows leave out seeds that did not train."""
    return [f'"{row.title}": {row.training_note}; the row is of the others.' for row in rows if row.training_note]
