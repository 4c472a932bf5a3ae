"""Many experiments in one folder: what is done is skipped, what stopped goes on, what fails does not stop the rest.

OUT/grid.json                    what the grid is: kind, data, last command, and its cells in order
OUT/base/<key>/                  run folders of base networks; cells whose recipes agree share one
OUT/cells/<name>/config.toml     its settings; with them word_vectors.sha256, where it needs word vectors
OUT/cells/<name>/fitted-*.safetensors   a method after the base session
OUT/cells/<name>/results.json    its sessions, as `fscil evaluate` writes them; a walk is added as it ends
OUT/cells/<name>/predictions/    per walk, every prediction behind the figures
OUT/cells/<name>/failed.txt      why it failed, where it did
"""

import hashlib
import json
import re
import shlex
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
from fscil.experiments.results import result_header, walk_record
from fscil.experiments.run import require_enough_images
from fscil.experiments.sessions import Walk, walk_all
from fscil.features import FeatureCache
from fscil.methods import METHODS, Method
from fscil.protocol import Draw, Protocol
from fscil.runtime.files import digest_of_file, load_tensors, read_json, save_tensors, write_json, write_text
from fscil.runtime.progress import titled
from fscil.runtime.text import duration
from fscil.training.base_training import load_base_network, train_base_network
from fscil.training.build import base_images, dataset_of, preprocess_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

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
        """Every cell under every number of shots and draw; returns what failed, by the cell's name."""
        self.out.mkdir(parents=True, exist_ok=True)
        with Run(self.out).locked():
            self._describe(kind)
            failed = {}
            for place, cell in enumerate(self.cells, 1):
                title = f"[{place}/{len(self.cells)}] {cell.label}, seed {cell.config.train.seed}"
                with titled(f"{title}: "):
                    problem = self._guarded(cell, title, shots, draws)
                if problem:
                    failed[cell.name] = problem
                    self._say(f"[{place}/{len(self.cells)}] {cell.name} failed: {problem}")
        return failed

    def _describe(self, kind: str) -> None:
        """The cells of this call, and those of earlier calls into the same folder."""
        path = self.out / "grid.json"
        there: dict[str, Any] = read_json(path) if path.exists() else {"kind": kind, "cells": []}
        if there["kind"] != kind:
            raise ConfigError(f"{self.out} holds the cells of {there['kind']}, not of {kind}. Give another --out.")
        data = self._data()
        if any(self.out.glob("base/*/run.json")) and (other := _unlike(there.get("data", data), data)):
            raise ConfigError(
                f"{self.out} holds results of other images: {other}. Give the same --data, or another --out."
            )
        mine = [{"name": cell.name, "label": cell.label, "seed": cell.config.train.seed} for cell in self.cells]
        names = {cell["name"] for cell in there["cells"]}
        cells = there["cells"] + [cell for cell in mine if cell["name"] not in names]
        write_json(path, {"schema": 1, "kind": kind, "data": data, "command": _command(), "cells": cells})

    def _data(self) -> dict[str, Any]:
        """The data set's name; of a user's own images also which classes there are, and how many images of each."""
        config = self.cells[0].config
        if config.data.name != "folder":
            return {"name": config.data.name}
        dataset = self._dataset(config)
        train, test = dataset.train.counts, dataset.test.counts
        classes = {name: [train.get(label, 0), test.get(label, 0)] for label, name in enumerate(dataset.class_names)}
        return {"name": config.data.name, "classes": classes}

    def _guarded(self, cell: Cell, title: str, shots: Sequence[int], draws: Sequence[Draw]) -> str:
        """An empty text, or why it failed. Ctrl-C ends the grid; a method that fails does not."""
        folder = self.out / "cells" / cell.name
        try:
            self._refuse_others(cell, folder)
        except FscilError as error:  # says nothing of the cell that is there
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
        results_file = folder / "results.json"
        results = read_json(results_file) if results_file.exists() else None
        done = {(walk["shots"], walk["draw"]) for walk in results["walks"]} if results else set()
        wanted = list(dict.fromkeys((count, draw) for count in shots for draw in draws))
        if done.issuperset(wanted):
            self._say(f"{cell.name}: done before")
            return
        dataset = self._dataset(cell.config)
        protocol = protocol_of(cell.config, dataset)
        require_enough_images(dataset, protocol, shots)
        run = self._base(cell.config, dataset, protocol)
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
            write_json(results_file, results)
        last = [walk["sessions"][-1] for walk in results["walks"] if walk["shots"] == shots[0]]
        measure = "harmonic" if protocol.sessions else "average"
        value = 100 * float(np.mean([session[measure] for session in last]))
        self._say(f"{cell.name}: {measure} accuracy {value:.1f} in the last session, {shots[0]}-shot")

    def _refuse_others(self, cell: Cell, folder: Path) -> None:
        """Results of other settings must neither be taken for these nor be mixed with them."""
        path, words, digest = folder / "config.toml", folder / "word_vectors.sha256", _digest_of_words(cell.config)
        begun = (folder / "results.json").exists() or any(folder.glob("fitted-*.safetensors"))
        if not (begun and path.exists()):  # settings that led to nothing bind nobody
            write_text(path, to_toml(cell.config))
            write_text(words, digest) if digest else words.unlink(missing_ok=True)
            return
        free = ("about", "protocol.shots", "protocol.draw", "train.checkpoint_minutes", "data.word_vectors")
        if other := difference(cell.config, load_recipe(path), free):
            raise ConfigError(f"{folder} holds results of other settings: {other}. Give the same, or another --out.")
        if digest and words.exists() and words.read_text(encoding="utf-8") != digest:
            raise ConfigError(
                f"{folder} holds results of other word vectors than {cell.config.data.word_vectors}. Give the same, "
                f"or another --out."
            )

    def _dataset(self, config: Config) -> Dataset:
        if config.data not in self._loaded:
            self._loaded[config.data] = dataset_of(config, self._root, self._context.quiet)
        return self._loaded[config.data]

    def _base(self, config: Config, dataset: Dataset, protocol: Protocol) -> Run:
        """The run folder of the network this cell starts from, trained if it is not there yet."""
        recipe = METHODS[config.method].base_recipe(config)
        folder = self.out / "base" / base_key(recipe)
        run = Run(folder)
        if not (folder / "run.json").exists():
            run = Run.create(folder, recipe, {"data": str(self._root) if self._root else None})
        if not run.finished:
            began = time.perf_counter()
            train_base_network(recipe, base_images(dataset, protocol), self._context, run)
            self._say(f"base network {folder.name}: trained in {duration(time.perf_counter() - began)}")
        if not (folder / "sample.safetensors").exists():
            self._keep_sample(recipe, run, base_images(dataset, protocol))
        return run

    def _keep_sample(self, recipe: Config, run: Run, base: Images) -> None:
        """Features of some training images of each base class, for the report to show how they lie."""
        few = [np.flatnonzero(base.labels == label)[:SAMPLE] for label in base.counts]
        sample = base.select(np.concatenate(few))
        backbone = load_base_network(recipe, run, self._context).backbone
        features = FeatureCache(backbone, preprocess_of(recipe), self._context.device, quiet=True)(sample)
        tensors = {"features": features, "labels": torch.from_numpy(sample.labels.copy())}
        save_tensors(run.folder / "sample.safetensors", tensors)

    def _fitted(
        self, config: Config, folder: Path, run: Run, dataset: Dataset, protocol: Protocol, shots: Sequence[int]
    ) -> tuple[Method, float]:
        """The method after the base session, from its file or by learning it, and the seconds that learning took."""
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


def _unlike(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Where two descriptions of data differ, the first difference."""
    if there["name"] != here["name"]:
        return f"{there['name']} there, {here['name']} here"
    old, new = there.get("classes", {}), here.get("classes", {})
    for name in [*old, *new]:
        (train, test), (new_train, new_test) = (classes.get(name, (0, 0)) for classes in (old, new))
        if (train, test) != (new_train, new_test):
            return f'"{name}" has {train} training and {test} test images there, {new_train} and {new_test} here'
    return ""


def _digest_of_words(config: Config) -> str:
    """Which word vectors a method is to use, wherever their file lies; empty where it needs none, or has no file."""
    path = config.data.word_vectors if METHODS[config.method].needs_words else ""
    if path == "glyphs":  # come with fscil
        return path
    return digest_of_file(Path(path)) if Path(path).is_file() else ""


def _save_predictions(folder: Path, walk: Walk) -> None:
    tensors = {}
    for result in walk.sessions:
        tensors[f"predicted.session-{result.session}"] = torch.from_numpy(result.predicted)
        tensors[f"target.session-{result.session}"] = torch.from_numpy(result.target)
    about = {"shots": walk.shots, "draw": walk.draw, "memory": asdict(walk.sessions[-1].memory)}
    save_tensors(folder / "predictions" / f"{walk.shots}-shot-draw-{walk.draw}.safetensors", tensors, about)
