"""Many experiments in one folder: finished ones are skipped, stopped ones resumed, a failure does not stop the rest.

Several processes, on one machine or on many that share the folder, may run the same grid: each claims a cell or a base
network, by a lock that ends with the process, and passes over what others have claimed.

OUT/grid.json                    what the grid is: kind, data, last command, and its cells in order
OUT/base/<key>/                  run folders of base networks; cells whose recipes agree share one, and its features
OUT/cells/<name>/config.toml     its settings; with them word_vectors.sha256, where it needs word vectors
OUT/cells/<name>/fitted-*.safetensors   a method after the base session
OUT/cells/<name>/results.json    its sessions, as `fscil evaluate` writes them; a walk is added as it ends
OUT/cells/<name>/provenance.json commands, times and machines of these
OUT/cells/<name>/predictions/    per walk, every prediction
OUT/cells/<name>/failed.txt      why it failed, where it did
"""

import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fscil.errors import ConfigError, FscilError
from fscil.experiments.base_networks import BeingTrainedError, claimed
from fscil.experiments.cell_run import CellRunner
from fscil.experiments.cells import Cell, data_difference, describe_data, require_same_settings
from fscil.experiments.provenance import command
from fscil.experiments.run import installed_base_recipe, require_enough_images
from fscil.protocol import Draw
from fscil.runtime.files import read_json, write_json, write_text
from fscil.runtime.locks import LOCK, locked
from fscil.runtime.progress import titled
from fscil.runtime.text import count, first_few
from fscil.training.build import protocol_of
from fscil.training.context import Context

WAIT = (0.2, 5.0)  # seconds between two looks at what others are working on: at first, and at most


class Grid:
    """Cells, and the folder their results go to."""

    def __init__(
        self,
        out: Path,
        cells: Sequence[Cell],
        root: Path | None,
        context: Context,
        say: Callable[[str], None],
    ) -> None:
        self.out, self.cells, self._say = out, cells, say
        self.runner = CellRunner(out, root, context, say)
        self.began = 0.0  # by the clock of the file system: what failed later, failed in this run

    def require_images(self, shots: Sequence[int], draws: Sequence[Draw]) -> None:
        """Raise where the images are missing, or too few for a class: every cell would fail, each for this reason.

        Cells that are done need none.
        """
        left = [cell.config for cell in self.cells if self.runner.missing(cell, shots, draws)]
        if left:
            dataset = self.runner.dataset(left[0])
            require_enough_images(dataset, protocol_of(left[0], dataset), shots)

    def take_networks(self, other: Path) -> None:
        """Those that cells here start from and the grid in `other` has trained."""
        for cell in self.cells:
            self.runner.networks.link(installed_base_recipe(cell.config), other / "base")

    def run(self, kind: str, shots: Sequence[int], draws: Sequence[Draw], wait: bool = True) -> dict[str, str]:
        """Every cell under every number of shots and draw; returns the reasons of failures by the cell's name.

        wait: at the end, for cells that other processes are working on; if one of these stops, they are done here.
        """
        self.describe(kind)
        failed: dict[str, str] = {}
        left, pause, told = list(enumerate(self.cells, 1)), WAIT[0], False
        while left:
            busy = []
            for place, cell in left:
                title = f"[{place}/{len(self.cells)}] {cell.label}, seed {cell.config.train.seed}"
                problem = self.attempt(cell, title, shots, draws)
                if problem is None:
                    busy.append((place, cell))
                elif problem:
                    failed[cell.name] = problem
                    self._say(f"[{place}/{len(self.cells)}] {cell.name} failed: {problem}")
            if len(busy) < len(left):
                pause, told = WAIT[0], False
            elif not wait:
                self._say(f"Left to other processes: {_named(busy)}.")
                break
            else:
                if not told:
                    self._say(f"Waiting for other processes, which work on {_named(busy)}.")
                told = True
                time.sleep(pause)
                pause = min(2 * pause, WAIT[1])
            left = busy
        return failed

    def describe(self, kind: str) -> None:
        """Write grid.json: the cells of this call, and those of earlier calls into the same folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out / LOCK):
            there, data = self.read(kind)
            mine = [{"name": cell.name, "label": cell.label, "seed": cell.config.train.seed} for cell in self.cells]
            names = {cell["name"] for cell in there["cells"]}
            cells = there["cells"] + [cell for cell in mine if cell["name"] not in names]
            path = self.out / "grid.json"
            write_json(path, {"schema": 1, "kind": kind, "data": data, "command": command(), "cells": cells})
            self.began = path.stat().st_mtime

    def read(self, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What grid.json holds, and the description of the data. Raises where it is of another kind or other images."""
        path = self.out / "grid.json"
        there: dict[str, Any] = read_json(path) if path.exists() else {"kind": kind, "cells": []}
        if there["kind"] != kind:
            raise ConfigError(f"{self.out} holds the cells of {there['kind']}, not of {kind}. Give another --out.")
        data = describe_data(self.cells[0].config, self.runner.dataset)
        if any(self.out.glob("base/*/run.json")) and (other := data_difference(there.get("data", data), data)):
            raise ConfigError(
                f"{self.out} holds results of other images: {other}. Give the same --data, or another --out."
            )
        return there, data

    def attempt(self, cell: Cell, title: str, shots: Sequence[int], draws: Sequence[Draw]) -> str | None:
        """Run a cell: why it failed, an empty text, or None where another process is at work on what it needs.

        Ctrl-C ends the grid.
        """
        folder = self.runner.folder(cell)
        with claimed(folder) as mine, titled(f"{title}: "):
            if not mine:
                return None
            if (problem := self._failed_elsewhere(folder)) is not None:
                return problem
            try:
                require_same_settings(cell, folder)
            except FscilError as error:  # not written to failed.txt: the results that are there are valid
                return str(error)
            try:
                self.runner.run(cell, title, shots, draws)
            except BeingTrainedError:
                return None
            except FscilError as error:
                problem = str(error)
                write_text(folder / "failed.txt", problem + "\n")
            except Exception as error:
                problem = f"{type(error).__name__}: {error} (see {folder / 'failed.txt'})"
                write_text(folder / "failed.txt", traceback.format_exc())
            else:
                (folder / "failed.txt").unlink(missing_ok=True)
                return ""
            return problem

    def _failed_elsewhere(self, folder: Path) -> str | None:
        """Why a cell failed in another process since this one began: it would fail here as well."""
        path = folder / "failed.txt"
        if not path.exists() or path.stat().st_mtime < self.began:
            return None
        return path.read_text(encoding="utf-8").strip().rpartition("\n")[2]


def _named(cells: Sequence[tuple[int, Cell]]) -> str:
    return f"{count(len(cells), 'cell')} ({first_few([cell.name for _, cell in cells])})"
