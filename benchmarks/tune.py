"""Evaluate a recipe or a method without test data: on the base classes' training images alone.

The last `--novel` base classes are the new ones, a tenth of every class's training images is the test part, and the
sessions are evaluated as usual. One call is one trial; its results are appended to `--log`. With `--bases`, trained
base networks are kept, so that trials which differ in their sessions only need not train them again. With `--lr` and
`--steps`, lists, every pair of them is a trial of the same fitted method: the rates and steps of its sessions.

    python benchmarks/tune.py glyphs --novel 15 --set train.lr=0.1 --log results/tuning-glyphs.jsonl
    python benchmarks/tune.py glyphs --novel 15 --set method=icarl --lr 0.1,0.01 --steps 30,100 --bases /tmp/bases
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fscil.config import Config, load_recipe
from fscil.data import Dataset
from fscil.data.images import Images
from fscil.experiments.base_networks import base_key
from fscil.experiments.sessions import walk_all
from fscil.methods import METHODS, Method
from fscil.metrics import mean_and_interval
from fscil.protocol import Protocol
from fscil.runtime.allocator import tune_allocator
from fscil.runtime.files import append_json_line
from fscil.training.base_training import TrainedNetwork, load_base_network, train_base_network
from fscil.training.build import base_images, dataset_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run


def without_test_data(dataset: Dataset, classes: tuple[int, ...], share: float = 0.1, seed: int = 0) -> Dataset:
    """These classes only; a share of each one's training images becomes the test part."""
    train = dataset.train.of_classes(classes).relabel(classes)
    held_out = np.zeros(len(train), bool)
    random = np.random.default_rng(seed)
    for label, count in train.counts.items():
        members = random.permutation(np.flatnonzero(train.labels == label))
        held_out[members[: round(share * count)]] = True
    names = tuple(dataset.class_names[label] for label in classes)
    return Dataset(train.select(~held_out), train.select(held_out), names, f"{dataset.name}-validation")


def base_network(config: Config, base: Images, bases: Path | None, context: Context) -> TrainedNetwork:
    """The network the method starts from; with a folder it is trained if it is not there yet, and kept."""
    recipe = METHODS[config.method].base_recipe(config)
    if bases is None:
        return train_base_network(recipe, base, context)
    run = Run(bases / f"{base_key(recipe)}-{len(base.counts)}")
    if not (run.folder / "run.json").exists():
        run = Run.create(run.folder, recipe, {})
    if not run.finished:
        train_base_network(recipe, base, context, run)
    return load_base_network(recipe, run, context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--novel", type=int, default=10, help="base classes that are used as new ones")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--bases", type=Path, help="folder that keeps trained base networks")
    parser.add_argument("--lr", type=numbers(float), default=[None], help="rates of sessions, separated by commas")
    parser.add_argument("--steps", type=numbers(int), default=[None], help="steps of a session, separated by commas")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    tune_allocator()

    config = load_recipe(given.recipe, given.settings)
    dataset = dataset_of(config, given.data, quiet=True)
    classes = protocol_of(config, dataset).seen(0)
    dataset = without_test_data(dataset, classes)
    protocol = Protocol(len(classes) - given.novel, config.protocol.way, given.novel // config.protocol.way)
    base = base_images(dataset, protocol)
    began = time.perf_counter()
    context = Context.on("auto")
    network = base_network(config, base, given.bases, context)
    method = METHODS[config.method](config, network, context, dataset.class_names)
    method.fit_base(base, config.protocol.shots)
    seconds = round(time.perf_counter() - began, 1)
    about = {"recipe": given.recipe, "set": given.settings, "novel": given.novel, "draws": given.draws}

    for lr, steps in itertools.product(given.lr, given.steps):
        changed = {name: value for name, value in (("lr", lr), ("steps", steps)) if value is not None}
        method.config = replace(config, incremental=replace(config.incremental, **changed))
        found = accuracies(method, dataset, protocol, config.protocol.shots, given.draws)
        trial = {**about, **changed, "fit seconds": seconds, **found}
        print(trial, flush=True)
        if given.log:
            append_json_line(given.log, trial)


def numbers(kind: Callable[[str], float]) -> Callable[[str], list[float]]:
    """A type of argparse: numbers separated by commas."""
    return lambda text: [kind(part) for part in text.split(",")]


def accuracies(
    method: Method, dataset: Dataset, protocol: Protocol, shots: Sequence[int], draws: int
) -> dict[str, object]:
    """In percent, means over the draws: of the last session, and of session 0."""
    walks = list(walk_all(method, dataset, protocol, shots, list(range(draws))))
    found: dict[str, object] = {}
    for count in shots:
        last = [walk.sessions[-1].scores for walk in walks if walk.shots == count]
        found[f"{count}-shot"] = {
            name: round(100 * mean_and_interval([getattr(scores, name) for scores in last])[0], 2)
            for name in ("average", "harmonic", "base", "novel")
        }
    found["session 0"] = round(100 * walks[0].sessions[0].scores.average, 2)
    return found


if __name__ == "__main__":
    main()
