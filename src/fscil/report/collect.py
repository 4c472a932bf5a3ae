"""Reads a grid's folder: its rows, with every accuracy as a mean over draws and seeds and the interval of that mean."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fscil.errors import StoreError
from fscil.metrics import confusion_matrix, failed_trainings
from fscil.report.numbers import MeanWithInterval
from fscil.runtime.files import load_tensors, read_json


def shown(results: Mapping[str, Any]) -> dict[str, Any]:
    """How the method of these results wants to be shown: title, table_order, highlighted, images_seen_note.

    Results of earlier versions do not say it, but the method does, if it is installed.
    """
    if "shown" in results:
        return dict(results["shown"])
    from fscil.experiments.results import shown_as

    return shown_as(results["method"])


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

    def draws(self, shots: int) -> list[Any]:
        return list(dict.fromkeys(walk["draw"] for walks in self.walks(shots) for walk in walks))

    def commands(self) -> list[str]:
        """Those that made its walks. Older results keep one for all walks."""
        return list(
            dict.fromkeys(
                walk.get("command") or result.get("command", "") for result in self.results for walk in result["walks"]
            )
        )

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


def read_grid(folder: Path) -> Results:
    """The results that `fscil bench` or `fscil study` has written so far."""
    path = folder / "grid.json"
    if not path.is_file():
        raise StoreError(
            f"{folder} holds no results to report: it has no grid.json. Make some, for instance with: "
            f"fscil bench glyphs --out {folder}"
        )
    grid = read_json(path)
    labels: dict[str, list[Path]] = {}
    failed, unfinished = {}, []
    for cell in grid["cells"]:
        place = folder / "cells" / cell["name"]
        if (place / "failed.txt").exists():
            failed[cell["name"]] = (place / "failed.txt").read_text(encoding="utf-8").strip().splitlines()[-1]
        if (place / "results.json").exists():
            labels.setdefault(cell["label"], []).append(place)
        elif cell["name"] not in failed:
            unfinished.append(cell["name"])
    if not labels:
        reasons = [f"{name} failed: {problem}" for name, problem in failed.items()]
        found = "\n".join([f"{folder}: no cell is finished yet.", *reasons])
        raise StoreError(f"{found}\nContinue with: {grid['command']}")
    rows = [_row(label, places) for label, places in labels.items()]
    rows.sort(key=lambda row: float(row.shown["table_order"]))  # the rows of a study, of one method, stay in order
    return Results(folder, grid["kind"], tuple(rows), failed, tuple(unfinished))


def _row(label: str, places: list[Path]) -> Row:
    return Row(label, tuple(places), tuple(read_json(place / "results.json") for place in places))
