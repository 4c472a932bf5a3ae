"""Reads a grid's folder: its rows, with every accuracy as a mean over draws and seeds and the interval of that mean."""

import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fscil.errors import StoreError
from fscil.experiments.provenance import read_results
from fscil.metrics import confusion_matrix, failed_trainings
from fscil.report.numbers import MeanWithInterval
from fscil.runtime.files import MAX_TEXT_BYTES, load_tensors, read_json
from fscil.runtime.regular_files import read_regular
from fscil.runtime.validation import as_type


def shown(results: Mapping[str, Any]) -> dict[str, Any]:
    """How the method of these results wants to be shown: title, table_order, highlighted, images_seen_note.

    Results of earlier versions do not say it, but the method does, if it is installed.
    """
    if "shown" in results:
        return dict(results["shown"])
    from fscil.experiments.results import shown_as

    return shown_as(results["method"])


def never_trained(results: Mapping[str, Any]) -> bool:
    """Whether its network has random weights: no epoch, and none to start from. Older results do not tell."""
    start = results.get("settings", {})
    return (
        not results["training"].get("epochs", 1) and start.get("model.init") == "scratch" and not start["model.weights"]
    )


@dataclass(frozen=True, eq=False)
class Row:
    """One label of a grid: the results of its cells, one per training seed."""

    label: str
    folders: tuple[Path, ...]
    results: tuple[dict[str, Any], ...]

    @property
    def method(self) -> str:
        return str(self.results[0]["method"])

    @cached_property
    def shown(self) -> dict[str, Any]:
        return shown(self.results[0])

    @property
    def title(self) -> str:
        """The method's in a comparison, the label in a study."""
        return str(self.shown["title"]) if self.label == self.method else self.label

    @cached_property
    def untrained(self) -> list[bool]:
        """Per seed, whether its training failed while others did not; accuracies are those of the others."""
        first = [result["walks"][0]["sessions"][0]["average"] for result in self.results]
        return failed_trainings(first, self.results[0]["protocol"]["base_classes"])

    @property
    def training_note(self) -> str:
        """ "1 of 3 seeds did not train", or empty."""
        return f"{sum(self.untrained)} of {len(self.untrained)} seeds did not train" if any(self.untrained) else ""

    def shots(self) -> list[int]:
        return list(dict.fromkeys(walk["shots"] for result in self.results for walk in result["walks"]))

    def sessions(self, shots: int) -> list[int]:
        """Those that were evaluated."""
        walks = self.walks(shots)
        return [session["session"] for session in walks[0][0]["sessions"]] if walks else []

    def walks(self, shots: int) -> list[list[dict[str, Any]]]:
        """Per seed that trained, the walks under this number of shots; seeds without any are left out."""
        trained = [result for result, failed in zip(self.results, self.untrained, strict=True) if not failed]
        found = [[walk for walk in result["walks"] if walk["shots"] == shots] for result in trained]
        return [walks for walks in found if walks]

    def accuracy(self, shots: int, session: int, measure: str) -> MeanWithInterval | None:
        """measure: average, harmonic, base or novel."""

        def value(walk: dict[str, Any]) -> float | None:
            return next((step[measure] for step in walk["sessions"] if step["session"] == session), None)

        return self._mean(shots, value, drawn=session > 0)

    def performance_drop(self, shots: int) -> MeanWithInterval | None:
        """PD: the average accuracy of the first session minus that of the last."""

        def value(walk: dict[str, Any]) -> float:
            drop: float = walk["sessions"][0]["average"] - walk["sessions"][-1]["average"]
            return drop

        return self._mean(shots, value, drawn=len(self.sessions(shots)) > 1)

    def _mean(
        self, shots: int, value: Callable[[dict[str, Any]], float | None], drawn: bool
    ) -> MeanWithInterval | None:
        """The mean over seeds of the means over draws; the interval is over seeds, or over draws where there is one.

        drawn: whether draws make a difference; where they make none, they give no interval either.
        """
        found = [[value(walk) for walk in walks] for walks in self.walks(shots)]
        known = [[one for one in seed if one is not None] for seed in found]
        seeds = [seed for seed in known if seed]
        if len(seeds) == 1 and drawn:
            return MeanWithInterval.of(seeds[0])
        return MeanWithInterval.of([float(np.mean(seed)) for seed in seeds])

    def difference(self, other: "Row", shots: int, measure: str) -> MeanWithInterval | None:
        """Of the last session, this row less the other: paired by training seed and draw, so that what a seed or a
        draw does to both cancels. The interval is over seeds, or over draws where there is one seed.
        """
        mine, theirs = self._last(shots, measure), other._last(shots, measure)
        seeds: dict[Any, list[float]] = {}
        for key in mine.keys() & theirs.keys():
            seeds.setdefault(key[0], []).append(mine[key] - theirs[key])
        if len(seeds) == 1:
            return MeanWithInterval.of(next(iter(seeds.values())))
        return MeanWithInterval.of([float(np.mean(seed)) for seed in seeds.values()])

    def common_seeds(self, other: "Row", shots: int, measure: str) -> int:
        """How many training seeds the difference to the other row is of."""
        mine, theirs = self._last(shots, measure), other._last(shots, measure)
        return len({seed for seed, _ in mine.keys() & theirs.keys()})

    def _last(self, shots: int, measure: str) -> dict[tuple[Any, Any], float]:
        """The measure in the last session, by training seed and draw."""
        found = {}
        for result, failed in zip(self.results, self.untrained, strict=True):
            for walk in result["walks"]:
                value = walk["sessions"][-1][measure]
                if walk["shots"] == shots and not failed and value is not None:
                    found[result["training"]["seed"], walk["draw"]] = value
        return found

    @property
    def at_chance(self) -> bool:
        """Whether session 0 is hardly better than guessing: the network has not learned."""
        first = self.accuracy(self.shots()[0], 0, "average")
        return first is not None and first.mean < 200 / self.results[0]["protocol"]["base_classes"]

    @property
    def below_pretrained(self) -> float | None:
        """By how many points training has lowered session 0 of the pretrained network it began with, if it has."""
        losses = [
            100 * (result["untouched"] - result["walks"][0]["sessions"][0]["average"])
            for result in self.results
            if result.get("untouched") is not None
        ]
        return float(np.mean(losses)) if losses and np.mean(losses) > 0 else None

    def draws(self, shots: int) -> list[Any]:
        return list(dict.fromkeys(walk["draw"] for walks in self.walks(shots) for walk in walks))

    def commands(self) -> list[str]:
        """Those that made its walks. Older results keep one for all walks; without provenance.json none is known."""
        told = (walk.get("command") or result.get("command") for result in self.results for walk in result["walks"])
        return list(dict.fromkeys(filter(None, told)))

    def confusion(self, shots: int) -> NDArray[np.int64] | None:
        """(classes, classes) counts of the last session over all draws and the seeds that trained."""
        total = None
        for folder in (folder for folder, failed in zip(self.folders, self.untrained, strict=True) if not failed):
            for path in sorted((folder / "predictions").glob(f"{shots}-shot-draw-*.safetensors")):
                tensors, _ = load_tensors(path)
                last = max(int(name.rpartition("-")[2]) for name in tensors)
                predicted, target = (tensors[f"{part}.session-{last}"].numpy() for part in ("predicted", "target"))
                matrix = confusion_matrix(predicted, target, int(target.max()) + 1)
                total = matrix if total is None else total + matrix
        return total


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a grid."""

    folder: Path
    kind: str
    rows: tuple[Row, ...]
    failed: dict[str, str]  # reasons by the cell's name
    unfinished: tuple[str, ...]  # cells that have neither failed nor any result yet

    @property
    def about(self) -> dict[str, Any]:
        """What all rows share: data, protocol, machine."""
        return self.rows[0].results[0]

    def shots(self) -> list[int]:
        return sorted({count for row in self.rows for count in row.shots()}, reverse=True)

    def with_shots(self, shots: int) -> list[Row]:
        return [row for row in self.rows if shots in row.shots()]

    def highlighted(self) -> list[Row]:
        """In a comparison the methods that say so, in a study the last row."""
        return [row for row in self.rows if row.shown["highlighted"]] if self.kind == "bench" else [self.rows[-1]]

    @property
    def reference(self) -> Row:
        """The row that others are compared with: the first highlighted one, or the last."""
        return (self.highlighted() or [self.rows[-1]])[0]

    def chance(self, shots: int) -> dict[int, float]:
        """By session, the average accuracy of guessing, in percent."""
        rows = self.with_shots(shots)
        steps = {
            step["session"]: step["classes"]
            for row in rows
            for walk in row.walks(shots)[:1]
            for step in walk[0]["sessions"]
        }
        return {session: 100 / classes for session, classes in sorted(steps.items())}

    def networks(self) -> dict[str, list[Row]]:
        """The base networks of the first seeds, each with the rows that start from it."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.results[0]["base"], []).append(row)
        return found

    def recipe(self, network: str) -> dict[str, Any]:
        """The settings by section that a base network was trained with; empty where they are not kept."""
        path = self.folder / "base" / network / "config.toml"
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def by_cross_entropy(self, network: str) -> bool:
        """Whether a base network was trained by that alone, and not by an objective of its own."""
        recipe = self.recipe(network)
        return bool(recipe) and recipe["loss"]["kind"] == "softmax" and not recipe["train"].get("objective")


def read_grid(folder: Path) -> Results:
    """The results that `fscil bench` or `fscil study` has written so far."""
    path = folder / "grid.json"
    if not path.is_file():
        raise StoreError(
            f"{folder} holds no results to report: it has no grid.json. Make some, for instance with: "
            f"{shlex.join(['fscil', 'bench', 'glyphs', '--out', str(folder)])}"
        )
    grid = as_type(read_json(path), _Grid, path)
    labels: dict[str, list[Path]] = {}
    failed, unfinished = {}, []
    for cell in grid.cells:
        place = folder / "cells" / cell.name
        if (place / "failed.txt").exists():
            failed[cell.name] = _last_line(place / "failed.txt")
        if (place / "results.json").exists():
            labels.setdefault(cell.label, []).append(place)
        elif cell.name not in failed:
            unfinished.append(cell.name)
    if not labels:
        reasons = [f"{name} failed: {problem}" for name, problem in failed.items()]
        found = "\n".join([f"{folder}: no cell is finished yet.", *reasons])
        raise StoreError(f"{found}\nContinue with: {grid.command}")
    rows = [_row(label, places) for label, places in labels.items()]
    rows.sort(key=lambda row: float(row.shown["table_order"]))  # the rows of a study, of one method, stay in order
    return Results(folder, grid.kind, tuple(rows), failed, tuple(unfinished))


@dataclass(frozen=True)
class _Cell:
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9.=-]*-seed[0-9]+$")]  # a folder in cells/, and none elsewhere
    label: str


@dataclass(frozen=True)
class _Grid:
    """What is read of grid.json."""

    kind: str
    cells: list[_Cell]
    command: str = ""


def _last_line(path: Path) -> str:
    try:
        lines = read_regular(path, MAX_TEXT_BYTES).decode(errors="replace").strip().splitlines()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error}).") from error
    return lines[-1] if lines else "no reason was written"


def _row(label: str, places: list[Path]) -> Row:
    return Row(label, tuple(places), tuple(read_results(place) for place in places))
