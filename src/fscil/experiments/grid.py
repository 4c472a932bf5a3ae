"""Many experiments in one folder: finished ones are skipped, stopped ones resumed, a failure does not stop the rest.

OUT/grid.json                    what the grid is: kind, data, last command, and its cells in order
OUT/base/<key>/                  run folders of base networks; cells whose recipes agree share one
OUT/cells/<name>/config.toml     its settings; with them word_vectors.sha256, where it needs word vectors
OUT/cells/<name>/fitted-*.safetensors   a method after the base session
OUT/cells/<name>/results.json    its sessions, as `fscil evaluate` writes them; a walk is added as it ends
OUT/cells/<name>/predictions/    per walk, every prediction
OUT/cells/<name>/failed.txt      why it failed, where it did
"""

import hashlib
import json
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscil.config import Config, flatten
from fscil.data import Dataset
from fscil.data.images import Images
from fscil.errors import ConfigError, FscilError
from fscil.experiments.cells import Cell, data_difference, describe_data, require_same_settings
from fscil.experiments.results import result_header, walk_record
from fscil.experiments.run import installed_base_recipe, require_enough_images
from fscil.experiments.sessions import Walk, walk_all
from fscil.features import FeatureCache
from fscil.methods import METHODS, Method
from fscil.protocol import Draw, Protocol
from fscil.runtime.files import load_tensors, read_json, save_tensors, write_json, write_text
from fscil.runtime.progress import titled
from fscil.runtime.text import duration
from fscil.training.base_training import load_base_network, train_base_network
from fscil.training.build import base_images, dataset_of, preprocess_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

SAMPLE = 20  # images per base class whose features are kept for the report


def base_key(recipe: Config) -> str:
    """The same for recipes that train the same network on the same images.

    Settings at their default are left out, so that a setting which a later version adds leaves earlier keys valid.
    """
    settings, default = flatten(recipe), flatten(Config())
    sections = ("data", "views", "mixing", "model", "loss", "train")
    free = ("data.word_vectors", "train.checkpoint_minutes")
    decisive = {key: value for key, value in settings.items() if key.split(".")[0] in sections and key not in free}
    decisive |= {key: settings[key] for key in ("protocol.base_classes", "protocol.order")}
    decisive = {key: value for key, value in decisive.items() if value != default[key]}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


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
        self.out, self.cells, self._root, self._context, self._say = out, cells, root, context, say
        self._loaded: dict[Any, Dataset] = {}

    def run(self, kind: str, shots: Sequence[int], draws: Sequence[Draw]) -> dict[str, str]:
        """Every cell under every number of shots and draw; returns the reasons of failures by the cell's name."""
        self.out.mkdir(parents=True, exist_ok=True)
        with Run(self.out).locked():
            self._write_description(kind)
            failed = {}
            for place, cell in enumerate(self.cells, 1):
                title = f"[{place}/{len(self.cells)}] {cell.label}, seed {cell.config.train.seed}"
                with titled(f"{title}: "):
                    problem = self._guarded(cell, title, shots, draws)
                if problem:
                    failed[cell.name] = problem
                    self._say(f"[{place}/{len(self.cells)}] {cell.name} failed: {problem}")
        return failed

    def _write_description(self, kind: str) -> None:
        """grid.json: the cells of this call, and those of earlier calls into the same folder."""
        path = self.out / "grid.json"
        there: dict[str, Any] = read_json(path) if path.exists() else {"kind": kind, "cells": []}
        if there["kind"] != kind:
            raise ConfigError(f"{self.out} holds the cells of {there['kind']}, not of {kind}. Give another --out.")
        data = describe_data(self.cells[0].config, self._dataset)
        if any(self.out.glob("base/*/run.json")) and (other := data_difference(there.get("data", data), data)):
            raise ConfigError(
                f"{self.out} holds results of other images: {other}. Give the same --data, or another --out."
            )
        mine = [{"name": cell.name, "label": cell.label, "seed": cell.config.train.seed} for cell in self.cells]
        names = {cell["name"] for cell in there["cells"]}
        cells = there["cells"] + [cell for cell in mine if cell["name"] not in names]
        write_json(path, {"schema": 1, "kind": kind, "data": data, "command": _command(), "cells": cells})

    def _guarded(self, cell: Cell, title: str, shots: Sequence[int], draws: Sequence[Draw]) -> str:
        """Run a cell; returns why it failed, or an empty text. Ctrl-C ends the grid."""
        folder = self.out / "cells" / cell.name
        try:
            require_same_settings(cell, folder)
        except FscilError as error:  # not written to failed.txt: the results that are there are valid
            return str(error)
        try:
            self._run(cell, title, folder, shots, draws)
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

    def _run(self, cell: Cell, title: str, folder: Path, shots: Sequence[int], draws: Sequence[Draw]) -> None:
        """Add the walks that are missing in the cell's results, and write these after each."""
        path = folder / "results.json"
        results = read_json(path) if path.exists() else None
        done = {(walk["shots"], walk["draw"]) for walk in results["walks"]} if results else set()
        wanted = list(dict.fromkeys((count, draw) for count in shots for draw in draws))
        if done.issuperset(wanted):
            self._say(f"{cell.name}: done before")
            return
        recipe, dataset = installed_base_recipe(cell.config), self._dataset(cell.config)
        protocol = protocol_of(cell.config, dataset)
        require_enough_images(dataset, protocol, shots)
        run = self._base_run(recipe, dataset, protocol)
        method, seconds = self._fitted(cell.config, folder, run, dataset, protocol, shots)
        if results is None:
            results = {**result_header(cell.config, dataset, protocol, run), "label": cell.label, "walks": []}
            results |= {"base": run.folder.name, "fit_seconds": seconds, "command": _command()}
        for place, (count, draw) in enumerate(wanted, 1):
            if (count, draw) in done:
                continue
            began = time.perf_counter()
            with titled(f"{title}, {count}-shot draw {draw} ({place}/{len(wanted)}): "):
                (walk,) = walk_all(method, dataset, protocol, [count], [draw])
            seconds = round(time.perf_counter() - began, 2)
            results["walks"].append({**walk_record(walk), "seconds": seconds, "command": _command()})
            _save_predictions(folder, walk)
            write_json(path, results)
        self._say(f"{cell.name}: {_last_session(results, shots[0])}")

    def _dataset(self, config: Config) -> Dataset:
        if config.data not in self._loaded:
            self._loaded[config.data] = dataset_of(config, self._root, self._context.quiet)
        return self._loaded[config.data]

    def _base_run(self, recipe: Config, dataset: Dataset, protocol: Protocol) -> Run:
        """The run folder of the recipe's base network, which is trained first where that is not finished."""
        folder = self.out / "base" / base_key(recipe)
        run = Run(folder)
        if not (folder / "run.json").exists():
            run = Run.create(folder, recipe, {"data": str(self._root) if self._root else None})
        if not run.finished:
            began = time.perf_counter()
            train_base_network(recipe, base_images(dataset, protocol), self._context, run)
            self._say(f"base network {folder.name}: trained in {duration(time.perf_counter() - began)}")
        if not (folder / "sample.safetensors").exists():
            self._save_sample(recipe, run, base_images(dataset, protocol))
        return run

    def _save_sample(self, recipe: Config, run: Run, base: Images) -> None:
        """Features of some training images of each base class, for the report's t-SNE."""
        few = [np.flatnonzero(base.labels == label)[:SAMPLE] for label in base.counts]
        sample = base.select(np.concatenate(few))
        backbone = load_base_network(recipe, run, self._context).backbone
        features = FeatureCache(backbone, preprocess_of(recipe), self._context.device, quiet=True)(sample)
        tensors = {"features": features, "labels": torch.from_numpy(sample.labels.copy())}
        save_tensors(run.folder / "sample.safetensors", tensors)

    def _fitted(
        self, config: Config, folder: Path, run: Run, dataset: Dataset, protocol: Protocol, shots: Sequence[int]
    ) -> tuple[Method, float]:
        """The method after the base session, from its file or fitted now, and the seconds that fitting took."""
        began = time.perf_counter()
        names = [dataset.class_names[label] for label in protocol.seen(protocol.sessions)]
        kind = METHODS[config.method]
        network = load_base_network(kind.base_recipe(config), run, self._context)
        method = kind(config, network, self._context, names)
        path = folder / f"fitted-{'-'.join(map(str, sorted(shots)))}.safetensors"
        if path.exists():
            state, about = load_tensors(path)
            method.load_state(state)
            return method, about.get("seconds", 0.0)
        method.fit_base(base_images(dataset, protocol), shots)
        seconds = round(time.perf_counter() - began, 1)
        save_tensors(path, method.state(), {"method": config.method, "seconds": seconds})
        return method, seconds


def _command() -> str:
    return shlex.join(["fscil", *sys.argv[1:]])


def _last_session(results: dict[str, Any], shots: int) -> str:
    """The accuracy of the last session, for the terminal."""
    last = [walk["sessions"][-1] for walk in results["walks"] if walk["shots"] == shots]
    measure = "harmonic" if results["protocol"]["sessions"] else "average"
    value = 100 * float(np.mean([session[measure] for session in last]))
    return f"{measure} accuracy {value:.1f} in the last session, {shots}-shot"


def _save_predictions(folder: Path, walk: Walk) -> None:
    tensors = {}
    for result in walk.sessions:
        tensors[f"predicted.session-{result.session}"] = torch.from_numpy(result.predicted)
        tensors[f"target.session-{result.session}"] = torch.from_numpy(result.target)
    about = {"shots": walk.shots, "draw": walk.draw, "memory": asdict(walk.sessions[-1].memory)}
    save_tensors(folder / "predictions" / f"{walk.shots}-shot-draw-{walk.draw}.safetensors", tensors, about)
