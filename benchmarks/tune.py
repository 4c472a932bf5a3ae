"""Judge a change to a recipe without test data: on the base classes' training images alone.

The last `--novel` base classes play the new ones, a tenth of every class's training images plays the test part, and the
sessions are walked as usual. One call is one trial; its figures are appended to `--log`.

    python benchmarks/tune.py glyphs --novel 15 --set train.lr=0.1 --log results/tuning-glyphs.jsonl
"""

import argparse
import time
from pathlib import Path

import numpy as np

from fscil.allocator import tune_allocator
from fscil.config import load_recipe
from fscil.data import Dataset
from fscil.experiments import load_data, protocol_of
from fscil.methods import Alice
from fscil.metrics import mean_and_interval
from fscil.protocol import Protocol
from fscil.sessions import base_images, walk_all
from fscil.store import append_json_line
from fscil.training import Trainer


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--novel", type=int, default=10, help="base classes that play new ones")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    tune_allocator()

    config = load_recipe(given.recipe, given.settings)
    dataset = load_data(config, given.data, quiet=True)
    base = protocol_of(config, dataset).seen(0)
    dataset = without_test_data(dataset, base)
    protocol = Protocol(len(base) - given.novel, config.protocol.way, given.novel // config.protocol.way)
    method = Alice(config, Trainer(config.train))
    began = time.perf_counter()
    method.train_backbone(base_images(dataset, protocol))
    seconds = time.perf_counter() - began
    method.describe_base(base_images(dataset, protocol), config.protocol.shots)

    trial = {"recipe": given.recipe, "set": given.settings, "novel": given.novel, "seconds": round(seconds, 1)}
    walks = list(walk_all(method, dataset, protocol, config.protocol.shots, range(given.draws)))
    for shots in config.protocol.shots:
        last = [walk.sessions[-1].scores for walk in walks if walk.shots == shots]
        trial[f"{shots}-shot"] = {
            name: round(100 * mean_and_interval([getattr(scores, name) for scores in last])[0], 2)
            for name in ("average", "harmonic", "base", "novel")
        }
    trial["session 0"] = round(100 * walks[0].sessions[0].scores.average, 2)
    print(trial)
    if given.log:
        append_json_line(given.log, trial)


if __name__ == "__main__":
    main()
