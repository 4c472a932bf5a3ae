"""Reads a grid's folder: its rows, with every figure as a mean over draws and seeds and the interval of that mean."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fscil.errors import StoreError
from fscil.metrics import confusion_matrix, mean_and_interval
from fscil.runtime.files import load_tensors, read_json

NAMES = {
    "alice": "ALICE",
    "finetune": "Ft-CNN",
    "joint": "joint training (upper bound, not in the paper)",
    "icarl": "iCaRL",
    "eeil": "EEIL",
    "lucir": "NCM",
    "topic": "TOPIC",
    "cec": "CEC",
    "semantic_kd": "Semantic-aware KD",
    "synthesized": "Synthesized features",
}


@dataclass(frozen=True)
class Figure:
    """A mean in percent, and half the width of its 95% interval where several values stand behind it."""

    mean: float
    interval: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.interval is None else f"{self.mean:.1f} ±{self.interval:.1f}"


@dataclass(frozen=True, eq=False)
class Row:
    """One label of a grid: the results of its cells, one per training seed."""

    label: str
    folders: tuple[Path, ...]
    results: tuple[dict[str, Any], ...]

    @property
    def method(self) -> str:
        return str(self.results[0]["method"])

    @property
    def title(self) -> str:
        return NAMES.get(self.label, self.label)

    def shots(self) -> list[int]:
        return list(dict.fromkeys(walk["shots"] for result in self.results for walk in result["walks"]))

    def sessions(self, shots: int) -> list[int]:
        """Those that were judged."""
        walks = self.walks(shots)
        return [session["session"] for session in walks[0][0]["sessions"]] if walks else []

    def walks(self, shots: int) -> list[list[dict[str, Any]]]:
        """Per training seed, the walks under this number of shots; seeds without any are left out."""
        found = [[walk for walk in result["walks"] if walk["shots"] == shots] for result in self.results]
        return [walks for walks in found if walks]

    def figure(self, shots: int, session: int, measure: str) -> Figure | None:
        """One measure of one session."""

        def value(walk: dict[str, Any]) -> float | None:
            return next((step[measure] for step in walk["sessions"] if step["session"] == session), None)

        return self._mean(shots, value, drawn=session > 0)

    def drop(self, shots: int) -> Figure | None:
        """PD: the average accuracy of the first session less that of the last."""

        def value(walk: dict[str, Any]) -> float:
            drop: float = walk["sessions"][0]["average"] - walk["sessions"][-1]["average"]
            return drop

        return self._mean(shots, value, drawn=len(self.sessions(shots)) > 1)

    def _mean(self, shots: int, value: Callable[[dict[str, Any]], float | None], drawn: bool) -> Figure | None:
        """The mean over seeds of the means over draws; the interval is over seeds, or over draws where there is one.

        drawn: whether draws make a difference; where they make none, they give no interval either.
        """
        found = [[value(walk) for walk in walks] for walks in self.walks(shots)]
        percents = [[100 * one for one in seed if one is not None] for seed in found]
        seeds = [seed for seed in percents if seed]
        if not seeds:
            return None
        several = len(seeds) > 1 or not drawn
        return Figure(*mean_and_interval([float(np.mean(seed)) for seed in seeds] if several else seeds[0]))

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
        """(classes, classes) counts of the last session over all draws and seeds."""
        total = None
        for folder in self.folders:
            for path in sorted((folder / "predictions").glob(f"{shots}-shot-draw-*.safetensors")):
                tensors, _ = load_tensors(path)
                last = max(int(name.rpartition("-")[2]) for name in tensors)
                predicted, target = (tensors[f"{part}.session-{last}"].numpy() for part in ("predicted", "target"))
                matrix = confusion_matrix(predicted, target, int(target.max()) + 1)
                total = matrix if total is None else total + matrix
        return total


@dataclass(frozen=True, eq=False)
class Results:
    """A grid as a report wants it."""

    folder: Path
    kind: str
    rows: tuple[Row, ...]
    failed: dict[str, str]  # by the cell's name, why
    unfinished: tuple[str, ...]  # cells that have neither failed nor any result yet

    @property
    def about(self) -> dict[str, Any]:
        """What all rows share: data, protocol, machine."""
        return self.rows[0].results[0]

    def shots(self) -> list[int]:
        return sorted({count for row in self.rows for count in row.shots()}, reverse=True)

    def with_shots(self, shots: int) -> list[Row]:
        return [row for row in self.rows if shots in row.shots()]

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


def read(folder: Path) -> Results:
    """What `fscil bench` or `fscil study` has written so far."""
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
        raise StoreError(f"{found}\nGo on with: {grid['command']}")
    rows = [Row(label, tuple(found), tuple(_results(place) for place in found)) for label, found in labels.items()]
    return Results(folder, grid["kind"], tuple(_in_order(rows)), failed, tuple(unfinished))


def _results(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(place / "results.json")
    return found


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Methods as in the paper's tables, ALICE last; the rows of a study as they come."""
    order = ["joint", "finetune", "icarl", "eeil", "lucir", "topic", "cec", "semantic_kd", "synthesized", "alice"]
    place = {name: number for number, name in enumerate(order)}
    return sorted(rows, key=lambda row: place.get(row.label, len(order)))
