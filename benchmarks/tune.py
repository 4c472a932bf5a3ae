"""Judge a recipe or a method without test data: on the base classes' training images alone.

The last `--novel` base classes play the new ones, a tenth of every class's training images plays the test part, and the
sessions are walked as usual. One call is one trial; its figures are appended to `--log`. With `--bases`, trained base
networks are kept, so that trials which differ in their sessions only need not train them again.

    python benchmarks/tune.py glyphs --novel 15 --set train.lr=0.1 --log results/tuning-glyphs.jsonl
    python benchmarks/tune.py glyphs --novel 15 --set method=icarl --set incremental.lr=0.1 --bases /tmp/bases
"""

import argparse
import time
from pathlib import Path

import numpy as np

from fscil.config import Config, load_recipe
from fscil.data import Dataset
from fscil.data.images import Images
from fscil.experiments.grid import base_key
from fscil.experiments.run import load_data, method_class, protocol_of, train_base
from fscil.experiments.sessions import base_images, walk_all
from fscil.metrics import mean_and_interval
from fscil.protocol import Draw, Protocol
from fscil.runtime.allocator import tune_allocator
from fscil.runtime.files import append_json_line
from fscil.training.build import backbone_of
from fscil.training.loop import Trainer
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


def base_run(config: Config, base: Images, bases: Path) -> Run:
    """The run folder of the network the method starts from, trained if it is not there yet."""
    recipe = method_class(config).base_recipe(config)
    run = Run(bases / f"{base_key(recipe)}-{len(base.counts)}")
    if not (run.folder / "run.json").exists():
        run = Run.create(run.folder, recipe, {})
    if not run.finished:
        train_base(recipe, Trainer(recipe.train, run=run), backbone_of(recipe), run, base)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--novel", type=int, default=10, help="base classes that play new ones")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--bases", type=Path, help="folder that keeps trained base networks")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    tune_allocator()

    config = load_recipe(given.recipe, given.settings)
    dataset = load_data(config, given.data, quiet=True)
    classes = protocol_of(config, dataset).seen(0)
    dataset = without_test_data(dataset, classes)
    protocol = Protocol(len(classes) - given.novel, config.protocol.way, given.novel // config.protocol.way)
    base = base_images(dataset, protocol)
    began = time.perf_counter()
    trainer = Trainer(config.train, run=base_run(config, base, given.bases) if given.bases else None)
    method = method_class(config)(config, trainer, dataset.class_names)
    method.fit_base(base, config.protocol.shots)
    seconds = time.perf_counter() - began

    trial = {"recipe": given.recipe, "set": given.settings, "novel": given.novel, "fit seconds": round(seconds, 1)}
    draws: list[Draw] = list(range(given.draws))
    walks = list(walk_all(method, dataset, protocol, config.protocol.shots, draws))
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
