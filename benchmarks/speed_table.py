"""A row of the speed table, and how the table is written."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fscil.runtime.files import write_json, write_text
from fscil.training.run_folder import machine

# How a figure reads and which way its goal lies.
KINDS = {
    "times faster": ("{:.2f}x", ">="),
    "share": ("{:.0%}", ">="),
    "times at most": ("{:.2f}x", "<="),
    "seconds more": ("+{:.2f} s", "<="),
}


@dataclass(frozen=True)
class Row:
    """One comparison: what was measured on both sides, and the figure the goal is about."""

    what: str
    ours: str
    against: str
    figure: float
    goal: float
    kind: str  # of KINDS
    rounds: dict[str, list[float]] = field(default_factory=dict)  # by side, as measured

    @property
    def met(self) -> bool:
        return self.figure >= self.goal if KINDS[self.kind][1] == ">=" else self.figure <= self.goal

    def cells(self) -> list[str]:
        form, way = KINDS[self.kind]
        goal = f"{way} {form.format(self.goal)}"
        return [self.what, self.ours, self.against, form.format(self.figure), goal, "met" if self.met else "not met"]


def table(rows: Sequence[Row]) -> str:
    lines = ["| what | ours | against | ratio | goal | |", "|---|---|---|---:|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row.cells())} |" for row in rows)]) + "\n"


def write(out: Path, rows: Sequence[Row], note: str = "") -> str:
    """out.json with every round and out.md; returns the text of the latter."""
    about: dict[str, Any] = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "note": note,
    }
    text = f"{', '.join(f'{key} {value}' for key, value in about['machine'].items())}, {about['date']}. {note}\n\n"
    text += table(rows)
    write_json(out.with_suffix(".json"), {**about, "rows": [{**asdict(row), "met": row.met} for row in rows]})
    write_text(out.with_suffix(".md"), text)
    return text


def milliseconds(seconds: float) -> str:
    """As many digits as can be read."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.3g} ms"
