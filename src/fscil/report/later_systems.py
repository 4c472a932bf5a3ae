"""Published numbers of systems after the paper, beside those of a grid."""

from collections.abc import Sequence

from fscil.experiments.published import LATER_SHOTS, later_results
from fscil.report.blocks import RowKind, Table
from fscil.report.collect import Results
from fscil.report.numbers import cell


def later_table(results: Results) -> Table | None:
    """The last session, published and ours where the grid has the system; None where there are no such numbers."""
    published = later_results(results.about["data"]) if results.kind == "bench" else []
    if not published or LATER_SHOTS not in results.shots():
        return None
    rows: list[tuple[RowKind, Sequence[str]]] = []
    for row in results.with_shots(LATER_SHOTS):
        if any(one["method"] == row.method for one in published):
            last = row.sessions(LATER_SHOTS)[-1]
            ours = [row.accuracy(LATER_SHOTS, last, measure) for measure in ("average", "harmonic")]
            rows.append(("ours", [row.title, "this grid", *map(cell, ours)]))
            rows += [_published(one) for one in published if one["method"] == row.method]
    shown = {row.method for row in results.rows}
    rows += [_published(one) for one in published if one["method"] not in shown]
    return Table(
        f"Systems after the paper, {LATER_SHOTS}-shot, last session",
        ["", "source", "average", "harmonic"],
        rows,
        [
            "Published numbers are of each system's own network and schedule, not comparable with a shorter training. "
            "Where a system has two sources, both are shown, also where they differ; what is cited in later work was "
            "not compared with the system's own paper.",
        ],
    )


def _published(one: dict[str, object]) -> tuple[RowKind, Sequence[str]]:
    numbers = [f"{one[measure]:.1f}" if measure in one else "-" for measure in ("average", "harmonic")]
    return ("paper", [str(one["label"]), str(one["source"]), *numbers])
