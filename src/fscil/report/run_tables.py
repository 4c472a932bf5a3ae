"""The tables of one run, laid out like those of the paper's supplement: sessions across, accuracies down."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fscil.experiments.published import DATA_NAMES, paper_rows
from fscil.report.blocks import RowKind, Table
from fscil.report.collect import never_trained, shown
from fscil.report.numbers import MeanWithInterval, cell
from fscil.runtime.text import count

MEASURES = {
    "average": "class-wise average accuracy (over all test images of the classes seen so far)",
    "harmonic": "harmonic accuracy (base against novel)",
    "base": "accuracy on base classes",
    "novel": "accuracy on novel classes",
    "class_mean": "mean over classes",
}
OPEN_SET_MEASURES = {"auroc": "AUROC", "fpr95": "FPR95 (lower is better)", "oscr": "OSCR"}


def run_tables(results: Mapping[str, Any]) -> list[Table]:
    """One table per number of shots, and another one on unknown images where these were evaluated.

    results: the content of a run's results.json.
    """
    counts = dict.fromkeys(walk["shots"] for walk in results["walks"])
    unknowns = "openset" in results["walks"][0]["sessions"][0]
    makers = [_accuracy_table, _open_set_table] if unknowns else [_accuracy_table]
    return [make(results, shots) for shots in counts for make in makers]


def _accuracy_table(results: Mapping[str, Any], shots: int) -> Table:
    walks = [walk for walk in results["walks"] if walk["shots"] == shots]
    sessions = results["protocol"]["sessions"]
    rows: list[tuple[RowKind, Sequence[str]]] = []
    for measure, name in MEASURES.items():
        rows.append(("heading", [name, _short(name)]))
        rows.append(("ours", ["this run", *_own_cells(walks, measure, sessions)]))
        rows += [("paper", cells) for cells in _paper_cells(results, shots, measure)]
    header = ["", *map(str, range(sessions + 1)), "PD"]
    return Table(_title(results, shots), header, rows, _notes(results, walks))


def _title(results: Mapping[str, Any], shots: int) -> str:
    data, protocol = DATA_NAMES.get(results["data"], results["data"]), results["protocol"]
    return f"{data}, {protocol['sessions']}-step {way_text(protocol)}-way {shots}-shot"


def way_text(protocol: Mapping[str, Any]) -> str:
    """New classes per session: 5, or 5/3/2 where they differ."""
    return "/".join(map(str, protocol.get("ways") or [protocol["way"]]))


def _short(name: str) -> str:
    """Of a measure, for a narrow column."""
    return name.partition(" (")[0].removeprefix("class-wise ").removeprefix("accuracy on ")


def _own_cells(walks: Sequence[Mapping[str, Any]], measure: str, sessions: int) -> list[str]:
    """A session that was not evaluated has an empty cell."""
    found = [{step["session"]: step[measure] for step in walk["sessions"]} for walk in walks]
    cells = _session_cells([[steps.get(session) for session in range(sessions + 1)] for steps in found])
    return [*cells, cell(MeanWithInterval.of([walk["pd"] for walk in walks])) if measure == "average" else "-"]


def _session_cells(walks: Sequence[Sequence[float | None]]) -> list[str]:
    """Draws begin after session 0, which is the same in every walk: it has no interval."""
    first, *later = zip(*walks, strict=True)
    return [cell(MeanWithInterval.of(values)) for values in (first[:1], *later)]


def _paper_cells(results: Mapping[str, Any], shots: int, measure: str) -> list[list[str]]:
    """The paper's rows on the same method, if it has as many sessions."""
    sessions, found = results["protocol"]["sessions"], []
    for row in paper_rows(results["data"], shots, results["method"]):
        if len(row["average"]) != sessions + 1 or measure not in ("average", "harmonic") or measure not in row:
            continue
        values = [f"{value:.1f}" for value in row[measure]]
        cells = [*values, f"{row['pd']:.1f}"] if measure == "average" else ["-", *values, "-"]
        found.append([f"{shown(results)['title']}, {row['source']}", *cells])
    return found


def _open_set_table(results: Mapping[str, Any], shots: int) -> Table:
    """One row per score: each metric's mean over the sessions. results.json has every session."""
    from fscil.openset import DEFAULT_SCORE  # imports torch

    walks = [walk for walk in results["walks"] if walk["shots"] == shots]
    # After the last session nothing is unknown.
    steps = [[step["openset"] for step in walk["sessions"] if "openset" in step] for walk in walks]
    rows: list[tuple[RowKind, Sequence[str]]] = []
    for score in steps[0][0]:
        means = [
            MeanWithInterval.of([float(np.mean([step[score][measure] for step in walk])) for walk in steps])
            for measure in OPEN_SET_MEASURES
        ]
        rows.append(("ours", [f"{score} (default)" if score == DEFAULT_SCORE else score, *map(cell, means)]))
    notes = [
        f"Unknown are the test images of the classes of later sessions; means over {count(len(steps[0]), 'session')}. "
        "AUROC: known against unknown. FPR95: unknown accepted where 95% of the known are. OSCR: known and correctly "
        "classified against unknown."
    ]
    return Table(f"{_title(results, shots)}: unknown images", ["score", *OPEN_SET_MEASURES.values()], rows, notes)


def _notes(results: Mapping[str, Any], walks: Sequence[Mapping[str, Any]]) -> list[str]:
    training, draws = results["training"], [walk["draw"] for walk in walks]
    drawn = f"draw: {draws[0]}" if len(draws) == 1 else f"mean and 95% interval over {len(draws)} seeded draws"
    notes = [
        f"{results['backbone']} ({results['parameters']:,} parameters), {count(training['epochs'], 'epoch')}, "
        f"seed {training['seed']}; prototypes: {results['prototypes']}; {drawn}."
    ]
    if alternatives := walks[0]["sessions"][0]["alternatives"]:
        listed = ", ".join(f"{100 * value:.1f} ({name})" for name, value in alternatives.items())
        notes.append(f"Session 0 uses all base data, as the paper does. With the method's other scores: {listed}.")
    first = walks[0]["sessions"][0]["average"]
    if never_trained(results):
        notes.append("This network was not trained: train.epochs is 0, and its weights are random.")
    elif first < 2 / results["protocol"]["base_classes"]:
        notes.append(
            "This network has not learned: session 0 is at chance. A smaller train.lr or a longer training may help."
        )
    if results.get("untouched") is not None and first < results["untouched"]:
        notes.append(
            f"Training made the pretrained network worse: without it, the nearest class mean reaches "
            f"{100 * results['untouched']:.1f} in session 0."
        )
    if results["departures"]:
        listed = ", ".join(f"{key} = {here} ({there})" for key, (here, there) in results["departures"].items())
        notes.append(f"Not comparable with the paper: this run departs from its recipe (in brackets) in {listed}.")
    return notes + made_by(results)


def made_by(results: Mapping[str, Any]) -> list[str]:
    """The command, versions, CPU and images behind a table; nothing where older results do not tell."""
    if "command" not in results or "data_fingerprint" not in results:
        return []
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return [
        f"Made by `{results['command']}` with {versions} on {results['machine']['cpu']}; images (SHA-256) "
        f"{results['data_fingerprint'][:16]}. All settings and the order of classes are in results.json."
    ]
