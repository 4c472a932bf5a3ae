"""How results came about: commands, times and machines, apart from the results.

results.json has all that decides the figures, and the figures: identical runs write identical files. What differs from
run to run is in provenance.json beside it. Results of earlier versions hold both.
"""

import hashlib
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from fscil.data import Dataset
from fscil.data.images import Images
from fscil.runtime.files import read_json, write_json
from fscil.runtime.validation import as_type
from fscil.training.run_folder import machine

RESULTS, PROVENANCE = "results.json", "provenance.json"
CHUNK = 256  # images read at once


def command() -> str:
    """The command of this process, quoted so that a shell takes it back."""
    return shlex.join(["fscil", *sys.argv[1:]])


def data_fingerprint(dataset: Dataset) -> str:
    """SHA-256 of class names, labels and pixels as stored, part by part: wherever the files lie, whatever their dates.

    It changes with the size at which images are stored, which is a setting.
    """
    found = hashlib.sha256("\0".join(dataset.class_names).encode(errors="surrogateescape"))
    for images in (dataset.train, dataset.test):
        found.update(images.labels.tobytes())
        _add_pixels(found, images)
    return found.hexdigest()


def _add_pixels(found: Any, images: Images) -> None:
    for rows in np.split(images.rows, range(CHUNK, len(images), CHUNK)):
        for image in images.pixels.read(rows):
            found.update(f"{image.shape}".encode())
            found.update(np.ascontiguousarray(image).data)


@dataclass(frozen=True)
class StoredSession:
    session: Annotated[int, Meta(ge=0, le=10**6)]
    average: float


@dataclass(frozen=True)
class StoredWalk:
    shots: Annotated[int, Meta(ge=1, le=10**6)]
    draw: int | str
    sessions: Annotated[list[StoredSession], Meta(min_length=1)]


@dataclass(frozen=True)
class StoredResults:
    """What readers of results.json rely on; it may come from anybody."""

    method: str
    protocol: dict[str, int | list[int]]
    walks: list[StoredWalk]
    training: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedWalk:
    shots: int
    draw: int | str


@dataclass(frozen=True)
class StoredProvenance:
    """What readers of provenance.json rely on."""

    walks: list[TimedWalk]
    training: dict[str, Any] = field(default_factory=dict)


class Provenance:
    """The provenance.json of one folder: of base training, of fitting, and of every walk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / PROVENANCE
        empty: dict[str, Any] = {"schema": 1, "command": command(), "machine": machine(), "walks": []}
        self.content = read_json(self._path) if self._path.exists() else empty

    def note(self, **values: Any) -> None:
        self.content |= values
        write_json(self._path, self.content)

    def add_walk(self, shots: int, draw: Any, seconds: float) -> None:
        """Before the walk's figures are written: a walk without figures is harmless, and is replaced."""
        others = [walk for walk in self.content["walks"] if (walk["shots"], walk["draw"]) != (shots, draw)]
        one = {"shots": shots, "draw": draw, "seconds": seconds, "command": command(), "machine": machine()}
        self.note(walks=[*others, one])


def read_results(folder: Path) -> dict[str, Any]:
    """results.json together with its provenance: command, machine, fit_seconds, training.seconds, and of each walk
    command and seconds."""
    results: dict[str, Any] = read_json(folder / RESULTS)
    as_type(results, StoredResults, folder / RESULTS)
    path = folder / PROVENANCE
    if not path.exists():
        return results
    about: dict[str, Any] = read_json(path)
    as_type(about, StoredProvenance, path)
    walks = {(walk["shots"], walk["draw"]): walk for walk in about["walks"]}
    results |= {key: about[key] for key in ("command", "machine", "fit_seconds") if key in about}
    results["training"] = {**results["training"], **about.get("training", {})}
    results["walks"] = [{**walk, **_told(walks.get((walk["shots"], walk["draw"]), {}))} for walk in results["walks"]]
    return results


def _told(walk: Mapping[str, Any]) -> dict[str, Any]:
    return {key: walk[key] for key in ("seconds", "command") if key in walk}
