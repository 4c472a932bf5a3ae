"""Results -> tables, laid out like those of the paper's supplement, for the terminal and as Markdown."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from fscil.metrics import mean_and_interval

if TYPE_CHECKING:
    from rich.console import Group

MEASURES = {
    "average": "class-wise average accuracy (over all test images of the classes seen so far)",
    "harmonic": "harmonic accuracy (base against novel)",
    "base": "accuracy on base classes",
    "novel": "accuracy on novel classes",
    "class_mean": "mean over classes",
}
OPEN_SET_MEASURES = {
    "auroc": "AUROC (known against unknown)",
    "fpr95": "FPR at 95% TPR (lower is better)",
    "oscr": "OSCR (known and correctly classified against unknown)",
}
DATA_NAMES = {"cifar100": "CIFAR100", "mini_imagenet": "miniImageNet", "cub200": "CUB200"}


@dataclass(frozen=True)
class Table:
    """Sessions across, one group of rows per measure."""

    title: str
    header: list[str]
    groups: list[tuple[str, list[list[str]]]]  # measure, rows of cells
    notes: list[str]


def paper_results() -> list[dict[str, Any]]:
    """The rows of the paper's tables, in percent."""
    text = (resources.files("fscil.experiments") / "paper.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["result"]
    return rows


def paper_ablation() -> dict[str, dict[str, Any]]:
    """The rows of the paper's ablation table (CIFAR100, 5-shot), by what each adds."""
    text = (resources.files("fscil.experiments") / "paper.toml").read_text(encoding="utf-8")
    return {row["label"]: row for row in tomllib.loads(text)["ablation"]}


def tables(results: Mapping[str, Any]) -> list[Table]:
    """One table per number of shots, and another one on unknown images where these were judged."""
    counts = dict.fromkeys(walk["shots"] for walk in results["walks"])
    unknowns = "openset" in results["walks"][0]["sessions"][0]
    makers = [_table, _open_set_table] if unknowns else [_table]
    return [make(results, shots) for shots in counts for make in makers]


def _table(results: Mapping[str, Any], shots: int) -> Table:
    walks = [walk for walk in results["walks"] if walk["shots"] == shots]
    protocol = results["protocol"]
    paper = next(
        (
            row
            for row in paper_results()
            if (row["data"], row["shots"], row["method"]) == (results["data"], shots, "alice")
        ),
        None,
    )
    if paper and len(paper["average"]) != protocol["sessions"] + 1:
        paper = None
    groups = []
    for measure, name in MEASURES.items():
        rows = [["this run", *_own_row(walks, measure, protocol["sessions"])]]
        if paper and measure == "average":
            rows.append(["ALICE, paper", *(f"{value:.1f}" for value in paper["average"]), f"{paper['pd']:.1f}"])
        if paper and measure == "harmonic":
            rows.append(["ALICE, paper", "-", *(f"{value:.1f}" for value in paper["harmonic"]), "-"])
        groups.append((name, rows))
    header = ["", *map(str, range(protocol["sessions"] + 1)), "PD"]
    return Table(_title(results, shots), header, groups, _notes(results, walks))


def _title(results: Mapping[str, Any], shots: int) -> str:
    data, protocol = DATA_NAMES.get(results["data"], results["data"]), results["protocol"]
    return f"{data}, {protocol['sessions']}-step {protocol['way']}-way {shots}-shot"


def _open_set_table(results: Mapping[str, Any], shots: int) -> Table:
    walks = [walk for walk in results["walks"] if walk["shots"] == shots]
    # After the last session nothing is unknown.
    judged = [place for place, step in enumerate(walks[0]["sessions"]) if "openset" in step]
    sessions = [str(walks[0]["sessions"][place]["session"]) for place in judged]
    groups = []
    for measure, name in OPEN_SET_MEASURES.items():
        rows = []
        for score in walks[0]["sessions"][0]["openset"]:
            figures = [[walk["sessions"][session]["openset"][score][measure] for session in judged] for walk in walks]
            means = [sum(row) / len(row) for row in figures]
            rows.append([score, *_session_cells(figures), _cell(means)])
        groups.append((name, rows))
    note = "Unknown are the test images of the classes of later sessions"
    return Table(f"{_title(results, shots)}: unknown images", ["", *sessions, "mean"], groups, [note])


def _own_row(walks: Sequence[Mapping[str, Any]], measure: str, sessions: int) -> list[str]:
    """A session that was not judged has no figure."""
    found = [{step["session"]: step[measure] for step in walk["sessions"]} for walk in walks]
    cells = _session_cells([[steps.get(session) for session in range(sessions + 1)] for steps in found])
    return [*cells, _cell([walk["pd"] for walk in walks]) if measure == "average" else "-"]


def _session_cells(walks: Sequence[Sequence[float | None]]) -> list[str]:
    """Draws begin after session 0, which is the same in every walk: it has no interval."""
    first, *later = zip(*walks, strict=True)
    return [_cell(first[:1]), *map(_cell, later)]


def _cell(values: Sequence[float | None]) -> str:
    """Percent, with the 95% interval of the mean where there are several values; "-" where it is undefined."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    mean, interval = mean_and_interval(known)
    return f"{mean:.1f}" if interval is None else f"{mean:.1f} ±{interval:.1f}"


def _notes(results: Mapping[str, Any], walks: Sequence[Mapping[str, Any]]) -> list[str]:
    training, draws = results["training"], [walk["draw"] for walk in walks]
    seconds = f", {training['seconds']:.0f} s" if training.get("seconds") else ""
    drawn = f"draw: {draws[0]}" if len(draws) == 1 else f"mean and 95% interval over {len(draws)} seeded draws"
    notes = [
        f"{results['backbone']} ({results['parameters']:,} parameters), {training['epochs']} epochs, "
        f"seed {training['seed']}{seconds}; prototypes: {results['prototypes']}; {drawn}"
    ]
    first = walks[0]["sessions"][0]
    if results["prototypes"] == "balanced":
        beside = ", ".join(f"{100 * value:.1f} ({name})" for name, value in first["alternatives"].items())
        notes.append(f"Session 0 uses all base data, as the paper does. With balanced prototypes: {beside}")
    if results["departures"]:
        listed = ", ".join(f"{key} = {here} ({there})" for key, (here, there) in results["departures"].items())
        notes.append(f"Not comparable with the paper: this run departs from its recipe (in brackets) in {listed}")
    return notes


def to_markdown(table: Table) -> str:
    width = len(table.header)
    lines = [f"### {table.title}", "", _line(table.header), _line(["---", *["---:"] * (width - 1)])]
    for name, rows in table.groups:
        lines.append(_line([f"*{name}*", *[""] * (width - 1)]))
        lines += [_line(row) for row in rows]
    return "\n".join([*lines, "", *(f"{note}.  " for note in table.notes)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_terminal(table: Table) -> "Group":
    """The interval stands below the mean, so that eleven sessions fit 80 columns; print it uncropped, for more."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = [row for _, rows in table.groups for row in rows]
    label, *cells = zip(table.header, *rows, strict=True)
    widths = [max(len(part) for cell in column for part in cell.split()) for column in cells]
    first = max(17, *map(len, label))
    grid = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=0, width=first + sum(widths) + len(widths))
    grid.add_column(width=first)
    for name, width in zip(table.header[1:], widths, strict=True):
        grid.add_column(name, justify="right", width=width)
    for name, group in table.groups:
        grid.add_section()
        short = name.partition(" (")[0].removeprefix("class-wise ").removeprefix("accuracy on ")
        grid.add_row(Text(short, "italic"))
        for row in group:
            grid.add_row(*(Text(cell.replace(" ±", "\n±")) for cell in row))
    return Group(Text(table.title, "bold"), grid, *map(Text, table.notes))
