"""Published numbers of systems after the paper, beside those of a grid."""

from collections.abc import Sequence
from typing import Any

from fscil.experiments.published import LATER_SHOTS, later_missing, later_results
from fscil.report.blocks import RowKind, Table
from fscil.report.collect import Results
from fscil.report.numbers import cell

DISPUTED = "†"  # behind a number of which there are two


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
            rows.append(("ours", [row.title, "this grid", *map(cell, ours), ""]))
            rows += [_published(one) for one in published if one["method"] == row.method]
    shown = {row.method for row in results.rows}
    rows += [_published(one) for one in published if one["method"] not in shown]
    return Table(
        f"Systems after the paper, {LATER_SHOTS}-shot, last session",
        ["", "source", "average", "harmonic", "paper"],
        rows,
        [
            "Published numbers are of each system's own network and schedule, not comparable with a shorter training. "
            "Where a system has two sources, both are shown; what is cited in later work was not compared with the "
            "system's own paper.",
            *([f"{DISPUTED} Two sources disagree."] if any(one["disputed"] for one in published) else []),
            later_missing(),
        ],
    )


def _published(one: dict[str, Any]) -> tuple[RowKind, Sequence[str]]:
    average = f"{one['average']:.1f}{DISPUTED if one['disputed'] else ''}"
    harmonic = f"{one['harmonic']:.1f}" if "harmonic" in one else "-"
    return ("paper", [one["label"], one["source"], average, harmonic, one["citation"]])
