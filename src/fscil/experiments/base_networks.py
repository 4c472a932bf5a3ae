"""The base networks of a grid: which recipes share one, and its training, by one process at a time."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from fscil.config import Config, flatten, load_recipe, recipe_names
from fscil.data import Dataset
from fscil.data.images import Images
from fscil.features import FeatureCache
from fscil.protocol import Protocol
from fscil.runtime.files import save_tensors
from fscil.runtime.locks import LOCK, locked
from fscil.runtime.text import duration
from fscil.training.base_training import load_base_network, train_base_network
from fscil.training.build import base_images, preprocess_of, require_whole_test_images
from fscil.training.context import Context
from fscil.training.run_folder import Run

NEVER_CHANGED = {".json", ".toml", ".safetensors"}  # files of a finished network
SAMPLE = 20  # images per base class whose features are kept for the report


class BeingTrainedError(Exception):
    """Another process is training this network: the cells that need it must wait."""


def base_key(recipe: Config) -> str:
    """The same for recipes that train the same network on the same images.

    Settings at their default are left out, so that a setting which a later version adds leaves earlier keys valid. For
    the same reason the scale of test images is left out where it is that of the recipe named like the data set.
    """
    settings, default = flatten(recipe), flatten(Config())
    sections = ("data", "views", "mixing", "model", "loss", "train")
    free = ("data.word_vectors", "train.checkpoint_minutes")
    decisive = {key: value for key, value in settings.items() if key.split(".")[0] in sections and key not in free}
    decisive |= {key: settings[key] for key in ("protocol.base_classes", "protocol.order")}
    decisive = {key: value for key, value in decisive.items() if value != default[key]}
    if _trains_at_test_scale(recipe):
        usual = flatten(load_recipe(recipe.data.name)) if recipe.data.name in recipe_names() else default
        scale = ("test.resize", "test.interpolation")
        decisive |= {key: settings[key] for key in scale if settings[key] != usual[key]}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def _trains_at_test_scale(recipe: Config) -> bool:
    """Whether base training sees images as they are in the test: padded crops, an objective's, validation images."""
    return recipe.views.kind == "crops" or bool(recipe.train.objective) or recipe.train.selection == "validation"


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether this process alone works on the folder in the block. A claim ends with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait=False) as mine:
        yield mine


class BaseNetworks:
    """The run folders of a grid's base networks, OUT/base/<key>."""

    def __init__(self, folder: Path, root: Path | None, context: Context, say: Callable[[str], None]) -> None:
        self.folder, self._root, self._context, self._say = folder, root, context, say

    def run_of(self, recipe: Config) -> Run:
        """There may be nothing in it yet."""
        return Run(self.folder / base_key(recipe))

    def is_ready(self, recipe: Config) -> bool:
        folder = self.run_of(recipe).folder
        return (folder / "run.json").exists() and Run(folder).finished and (folder / "sample.safetensors").exists()

    def link(self, recipe: Config, others: Path) -> None:
        """Take the network from `others`, the networks of another grid, where it is trained there.

        By hard links, of files that are never written again, as those of a finished network are but its log. The
        weights are last, so that another process takes the network for trained only when all of it is there.
        """
        mine, theirs = self.run_of(recipe), BaseNetworks(others, self._root, self._context, self._say)
        if (mine.folder / "run.json").exists() or not theirs.is_ready(recipe):
            return
        source = theirs.run_of(recipe)
        files = [path for path in source.folder.iterdir() if path.suffix in NEVER_CHANGED]
        mine.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(files, key=lambda path: path == source.weights):
            with suppress(OSError):  # there already, or a file system without such links: the network is trained anew
                (mine.folder / path.name).hardlink_to(path)

    def trained(self, recipe: Config, dataset: Dataset, protocol: Protocol) -> Run:
        """The network's run folder; it is trained first, from its checkpoint if it has one, where it is not ready.

        Raises BeingTrainedError while another process does that.
        """
        run = self.run_of(recipe)
        if self.is_ready(recipe):
            return run
        require_whole_test_images(recipe, dataset.train)
        with claimed(run.folder) as mine:
            if not mine:
                raise BeingTrainedError(run.folder.name)
            if not (run.folder / "run.json").exists():
                run = Run.create(run.folder, recipe, {"data": str(self._root) if self._root else None})
            if not run.finished:
                began = time.perf_counter()
                train_base_network(recipe, base_images(dataset, protocol), self._context, run)
                self._say(f"base network {run.folder.name}: trained in {duration(time.perf_counter() - began)}")
            if not (run.folder / "sample.safetensors").exists():
                names = [dataset.class_names[label] for label in protocol.seen(0)]
                self._save_sample(recipe, run, base_images(dataset, protocol), names)
        return run

    def _save_sample(self, recipe: Config, run: Run, base: Images, names: Sequence[str]) -> None:
        """Features of some training images of each base class, for the report's t-SNE."""
        few = [np.flatnonzero(base.labels == label)[:SAMPLE] for label in base.counts]
        sample = base.select(np.concatenate(few))
        backbone = load_base_network(recipe, run, self._context).backbone
        features = FeatureCache(backbone, preprocess_of(recipe), self._context.device, quiet=True)(sample)
        tensors = {"features": features, "labels": torch.from_numpy(sample.labels.copy())}
        save_tensors(run.folder / "sample.safetensors", tensors, {"classes": list(names)})
