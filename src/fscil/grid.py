"""Many experiments in one folder: what is done is skipped, what stopped goes on, what fails does not stop the rest.

OUT/grid.json                    what the grid is: kind, recipe, command, and its cells in order
OUT/base/<key>/                  run folders of base networks; cells whose recipes agree share one
OUT/cells/<name>/fitted.safetensors   a method after the base session
OUT/cells/<name>/results.json    its sessions, as `fscil evaluate` writes them; a walk is added as it ends
OUT/cells/<name>/predictions/    per walk, every prediction behind the figures
OUT/cells/<name>/failed.txt      why it failed, where it did
"""

import hashlib
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscil.config import Config, difference, flatten, load_recipe, to_toml
from fscil.data import Dataset
from fscil.data.images import Images
from fscil.errors import ConfigError, FscilError
from fscil.experiments import check, load_data, method_class, protocol_of, record, summary, train_base
from fscil.features import FeatureExtractor
from fscil.methods import Method
from fscil.methods.parts import backbone_of, preprocess_of
from fscil.progress import clock, titled
from fscil.protocol import Draw, Protocol
from fscil.runs import Run
from fscil.sessions import Walk, base_images, walk_all
from fscil.store import load_tensors, read_json, save_tensors, write_json, write_text
from fscil.training import Trainer, load_state

SAMPLE = 20  # images per base class whose features are kept to be shown


@dataclass(frozen=True)
class Cell:
    """One row of a table under one training seed."""

    label: str  # of the row; cells of several seeds share it
    config: Config  # method, seed and all

    @property
    def name(self) -> str:
        return f"{re.sub(r'[^a-zA-Z0-9.=]+', '-', self.label).strip('-')}-seed{self.config.train.seed}"


def base_key(recipe: Config) -> str:
    """The same for recipes that train the same network on the same images.

    Settings at their default do not count: one that a later version adds leaves the networks of before valid.
    """
    settings, default = flatten(recipe), flatten(Config())
    sections = ("data", "views", "mixing", "model", "loss", "train")
    free = ("data.word_vectors", "data.test_share", "train.checkpoint_minutes")
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
        device: torch.device,
        say: Callable[[str], None],
        quiet: bool = False,
    ) -> None:
        self.out, self.cells, self._root, self._device, self._say, self._quiet = out, cells, root, device, say, quiet
        self._loaded: dict[Any, Dataset] = {}

    def run(self, kind: str, shots: Sequence[int], draws: Sequence[Draw]) -> dict[str, str]:
        """Every cell under every number of shots and draw; returns what failed, by the cell's name."""
        self.out.mkdir(parents=True, exist_ok=True)
        with Run(self.out).locked():
            self._describe(kind)
            failed = {}
            for place, cell in enumerate(self.cells, 1):
                with titled(f"[{place}/{len(self.cells)}] {cell.label}, seed {cell.config.train.seed}: "):
                    problem = self._guarded(cell, shots, draws)
                if problem:
                    failed[cell.name] = problem
                    self._say(f"[{place}/{len(self.cells)}] {cell.name} failed: {problem}")
        return failed

    def _describe(self, kind: str) -> None:
        """The cells of this call, and those of earlier calls into the same folder."""
        path = self.out / "grid.json"
        there = read_json(path)["cells"] if path.exists() else []
        mine = [{"name": cell.name, "label": cell.label, "seed": cell.config.train.seed} for cell in self.cells]
        names = {cell["name"] for cell in there}
        cells = there + [cell for cell in mine if cell["name"] not in names]
        command = "fscil " + " ".join(sys.argv[1:])
        write_json(path, {"schema": 1, "kind": kind, "command": command, "cells": cells})

    def _guarded(self, cell: Cell, shots: Sequence[int], draws: Sequence[Draw]) -> str:
        """An empty text, or why it failed. Ctrl-C ends the grid; a method that fails does not."""
        folder = self.out / "cells" / cell.name
        try:
            self._run(cell, folder, shots, draws)
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

    def _run(self, cell: Cell, folder: Path, shots: Sequence[int], draws: Sequence[Draw]) -> None:
        results_file = folder / "results.json"
        results = read_json(results_file) if results_file.exists() else None
        self._refuse_others(cell, folder)
        done = {(walk["shots"], walk["draw"]) for walk in results["walks"]} if results else set()
        missing = {count: [draw for draw in draws if (count, draw) not in done] for count in shots}
        if not any(missing.values()):
            self._say(f"{cell.name}: done before")
            return
        dataset = self._dataset(cell.config)
        protocol = protocol_of(cell.config, dataset)
        check(dataset, protocol, shots)
        run = self._base(cell.config, dataset, protocol)
        began = time.perf_counter()
        method = self._fitted(cell.config, folder, run, dataset, protocol, shots)
        if results is None:
            results = {**summary(cell.config, dataset, protocol, run), "label": cell.label, "walks": []}
            results |= {"base": run.folder.name, "fit_seconds": round(time.perf_counter() - began, 1)}
            results["command"] = "fscil " + " ".join(sys.argv[1:])
        judged = (0, protocol.sessions) if getattr(type(method), "judged", "all") == "last" else None
        for count, wanted in missing.items():
            began = time.perf_counter()
            for walk in walk_all(method, dataset, protocol, [count], wanted, judged=judged):
                seconds, began = time.perf_counter() - began, time.perf_counter()
                results["walks"].append({**record(walk), "seconds": round(seconds, 2)})
                _save_predictions(folder, walk)
                write_json(results_file, results)
        last = [walk["sessions"][-1] for walk in results["walks"] if walk["shots"] == shots[0]]
        harmonic = 100 * float(np.mean([session["harmonic"] for session in last]))
        self._say(f"{cell.name}: harmonic accuracy {harmonic:.1f} in the last session, {shots[0]}-shot")

    def _refuse_others(self, cell: Cell, folder: Path) -> None:
        """Results of other settings must neither be taken for these nor be mixed with them."""
        path = folder / "config.toml"
        if not path.exists():
            write_text(path, to_toml(cell.config))
            return
        free = ("about", "protocol.shots", "protocol.draw", "train.checkpoint_minutes", "data.word_vectors")
        if other := difference(cell.config, load_recipe(path), free):
            raise ConfigError(f"{folder} holds results of other settings: {other}. Give the same, or another --out.")

    def _dataset(self, config: Config) -> Dataset:
        if config.data not in self._loaded:
            self._loaded[config.data] = load_data(config, self._root, self._quiet)
        return self._loaded[config.data]

    def _base(self, config: Config, dataset: Dataset, protocol: Protocol) -> Run:
        """The run folder of the network this cell starts from, trained if it is not there yet."""
        recipe = method_class(config).base_recipe(config)
        folder = self.out / "base" / base_key(recipe)
        run = Run(folder)
        if not (folder / "run.json").exists():
            run = Run.create(folder, recipe, {"data": str(self._root) if self._root else None})
        if not run.finished:
            trainer = Trainer(recipe.train, self._device, run, self._quiet)
            backbone = backbone_of(recipe).to(self._device)
            began = time.perf_counter()
            train_base(recipe, trainer, backbone, run, base_images(dataset, protocol))
            self._say(f"base network {folder.name}: trained in {clock(time.perf_counter() - began)}")
        if not (folder / "sample.safetensors").exists():
            self._keep_sample(recipe, run, base_images(dataset, protocol))
        return run

    def _keep_sample(self, recipe: Config, run: Run, base: Images) -> None:
        """Features of some training images of each base class, for the report to show how they lie."""
        few = [np.flatnonzero(base.labels == label)[:SAMPLE] for label in base.counts]
        sample = base.select(np.concatenate(few))
        backbone = backbone_of(recipe, blank=True).to(self._device)
        load_state(backbone, load_tensors(run.weights)[0], str(run.weights))
        features = FeatureExtractor(backbone, preprocess_of(recipe), self._device, quiet=True)(sample)
        tensors = {"features": features, "labels": torch.from_numpy(sample.labels.copy())}
        save_tensors(run.folder / "sample.safetensors", tensors)

    def _fitted(
        self, config: Config, folder: Path, run: Run, dataset: Dataset, protocol: Protocol, shots: Sequence[int]
    ) -> Method:
        """The method after the base session: from its file, or by learning it."""
        names = [dataset.class_names[label] for label in protocol.seen(protocol.sessions)]
        trainer = Trainer(config.train, self._device, run, self._quiet)
        method = method_class(config)(config, trainer, names)
        path = folder / f"fitted-{'-'.join(map(str, sorted(shots)))}.safetensors"
        if path.exists():
            method.load_state(load_tensors(path)[0])
        else:
            method.fit_base(base_images(dataset, protocol), shots)
            save_tensors(path, method.state(), {"method": config.method})
        return method


def _save_predictions(folder: Path, walk: Walk) -> None:
    tensors = {}
    for result in walk.sessions:
        tensors[f"predicted.session-{result.session}"] = torch.from_numpy(result.predicted)
        tensors[f"target.session-{result.session}"] = torch.from_numpy(result.target)
    about = {"shots": walk.shots, "draw": walk.draw, "memory": asdict(walk.sessions[-1].memory)}
    save_tensors(folder / "predictions" / f"{walk.shots}-shot-draw-{walk.draw}.safetensors", tensors, about)
