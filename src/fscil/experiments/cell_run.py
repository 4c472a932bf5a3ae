"""Runs one cell of a grid: its base network, the method after the base session, and the walks that are missing."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscil.config import Config
from fscil.data import Dataset
from fscil.errors import ConfigError
from fscil.experiments.base_networks import BaseNetworks
from fscil.experiments.cells import Cell
from fscil.experiments.feature_files import KeptFeatures, keep_features
from fscil.experiments.pretrained_accuracy import pretrained_accuracy
from fscil.experiments.provenance import RESULTS, Provenance, data_fingerprint
from fscil.experiments.results import result_header, walk_record
from fscil.experiments.run import installed_base_recipe, require_enough_images
from fscil.experiments.sessions import Walk, walk_all
from fscil.methods import METHODS, Method
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.protocol import Draw, Protocol
from fscil.runtime.files import load_tensors, read_json, save_tensors, write_json
from fscil.runtime.progress import titled
from fscil.training.base_training import load_base_network
from fscil.training.build import base_images, dataset_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run


class CellRunner:
    """Works in a grid's folder, cell by cell. Data sets are loaded once."""

    def __init__(self, out: Path, root: Path | None, context: Context, say: Callable[[str], None]) -> None:
        self.out, self._root, self._context, self._say = out, root, context, say
        self.networks = BaseNetworks(out / "base", root, context, say)
        self._loaded: dict[Any, Dataset] = {}
        self._fingerprints: dict[Any, str] = {}
        self._before_training: dict[str, float | None] = {}  # by base network

    def folder(self, cell: Cell) -> Path:
        return self.out / "cells" / cell.name

    def dataset(self, config: Config) -> Dataset:
        if config.data not in self._loaded:
            self._loaded[config.data] = dataset_of(config, self._root, self._context.quiet)
        return self._loaded[config.data]

    def fingerprint(self, config: Config) -> str:
        if config.data not in self._fingerprints:
            self._fingerprints[config.data] = data_fingerprint(self.dataset(config))
        return self._fingerprints[config.data]

    def missing(self, cell: Cell, shots: Sequence[int], draws: Sequence[Draw]) -> list[tuple[int, Draw]]:
        """The walks that the cell's results do not have yet: numbers of shots and draws."""
        path = self.folder(cell) / RESULTS
        done = {(walk["shots"], walk["draw"]) for walk in read_json(path)["walks"]} if path.exists() else set()
        wanted = dict.fromkeys((count, draw) for count in shots for draw in draws)
        return [one for one in wanted if one not in done]

    def train(self, cell: Cell) -> Run:
        """The cell's base network, which is trained where it is not ready. Raises BeingTrainedError."""
        recipe, dataset = installed_base_recipe(cell.config), self.dataset(cell.config)
        return self.networks.trained(recipe, dataset, protocol_of(cell.config, dataset))

    def run(self, cell: Cell, title: str, shots: Sequence[int], draws: Sequence[Draw]) -> None:
        """Add the walks that are missing in the cell's results, and write these after each. Raises BeingTrainedError.

        The caller has claimed the cell's folder.
        """
        missing = self.missing(cell, shots, draws)
        if not missing:
            self._say(f"{cell.name}: done before")
            return
        folder, dataset = self.folder(cell), self.dataset(cell.config)
        protocol = protocol_of(cell.config, dataset)
        require_enough_images(dataset, protocol, shots)
        run, about = self.train(cell), Provenance(folder)
        method = self._fitted(cell.config, about, run, dataset, protocol, shots)
        results = self._results(cell, folder, run, dataset, protocol)
        wanted = len(dict.fromkeys((count, draw) for count in shots for draw in draws))
        for place, (count, draw) in enumerate(missing, wanted - len(missing) + 1):
            began = time.perf_counter()
            with titled(f"{title}, {count}-shot draw {draw} ({place}/{wanted}): "):
                (walk,) = walk_all(method, dataset, protocol, [count], [draw])
            results["walks"] = in_order([*results["walks"], walk_record(walk)])
            _save_predictions(folder, walk)
            about.add_walk(count, draw, round(time.perf_counter() - began, 2))
            write_json(folder / RESULTS, results)
        self._say(f"{cell.name}: {_last_session(results, shots[0])}")

    def _results(self, cell: Cell, folder: Path, run: Run, dataset: Dataset, protocol: Protocol) -> dict[str, Any]:
        """Those that are there, or new ones without any walk."""
        path, fingerprint = folder / RESULTS, self.fingerprint(cell.config)
        if not path.exists():
            header = result_header(cell.config, dataset, protocol, fingerprint)
            before = self._pretrained_accuracy(run, dataset, protocol)
            return {**header, "untouched": before, "label": cell.label, "base": run.folder.name, "walks": []}
        results: dict[str, Any] = read_json(path)
        if results.get("data_fingerprint", fingerprint) != fingerprint:
            raise ConfigError(
                f"{folder} holds results of other images: their content has changed. Give the same --data, or another "
                f"--out."
            )
        return results

    def _pretrained_accuracy(self, run: Run, dataset: Dataset, protocol: Protocol) -> float | None:
        name = run.folder.name
        if name not in self._before_training:
            self._before_training[name] = pretrained_accuracy(run.config(), dataset, protocol, self._context)
        return self._before_training[name]

    def _fitted(
        self,
        config: Config,
        about: Provenance,
        run: Run,
        dataset: Dataset,
        protocol: Protocol,
        shots: Sequence[int],
    ) -> Method:
        """The method after the base session, from its file or fitted now."""
        began = time.perf_counter()
        names = [dataset.class_names[label] for label in protocol.seen(protocol.sessions)]
        kind = METHODS[config.method]
        network = load_base_network(kind.base_recipe(config), run, self._context)
        method = kind(config, network, self._context, names)
        if isinstance(method, FrozenFeatureMethod):  # features of a network are extracted once for all its cells
            keep_features(KeptFeatures(run, config, self.fingerprint(config), method.features), dataset, protocol)
        path = about.folder / f"fitted-{'-'.join(map(str, sorted(shots)))}.safetensors"
        if path.exists():
            method.load_state(load_tensors(path)[0])
            return method
        method.fit_base(base_images(dataset, protocol), shots)
        seconds = {"seconds": run.about().get("seconds")}
        about.note(fit_seconds=round(time.perf_counter() - began, 1), training=seconds)
        save_tensors(path, method.state(), {"method": config.method})
        return method


def in_order(walks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Most shots first; the published draw before the seeded ones. Whatever was asked for first."""

    def place(walk: dict[str, Any]) -> tuple[int, int]:
        return -walk["shots"], -1 if walk["draw"] == "published" else walk["draw"]

    return sorted(walks, key=place)


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
