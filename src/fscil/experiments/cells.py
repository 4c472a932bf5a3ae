"""A cell of a grid, and the checks that keep results of different settings, images or word vectors apart."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fscil.config import Config, difference, load_recipe, to_toml
from fscil.data import Dataset
from fscil.errors import ConfigError
from fscil.experiments.published import DATA_NAMES
from fscil.methods import METHODS
from fscil.runtime.files import digest_of_file, write_text

KNOWN_DATA = (*DATA_NAMES, "glyphs")  # always the same images

# Settings in which the results of one cell may differ: what they decide is written beside each walk, or nowhere.
FREE_SETTINGS = ("about", "protocol.shots", "protocol.draw", "train.checkpoint_minutes", "data.word_vectors")


@dataclass(frozen=True)
class Cell:
    """One row of a table under one training seed."""

    label: str  # of the row; cells of several seeds share it
    config: Config  # with its method and seed

    @property
    def name(self) -> str:
        return f"{re.sub(r'[^a-zA-Z0-9.=]+', '-', self.label).strip('-')}-seed{self.config.train.seed}"


def require_same_settings(cell: Cell, folder: Path) -> None:
    """Raise if the cell's folder holds results of other settings or word vectors; write these settings if it has none.

    Settings without results, as a failure leaves them, are replaced.
    """
    if problem := difference_of_settings(cell, folder):
        raise ConfigError(problem)
    if not (_is_begun(folder) and (folder / "config.toml").exists()):
        words, digest = folder / "word_vectors.sha256", _digest_of_words(cell.config)
        write_text(folder / "config.toml", to_toml(cell.config))
        write_text(words, digest) if digest else words.unlink(missing_ok=True)


def difference_of_settings(cell: Cell, folder: Path) -> str:
    """Of the cell and the results in its folder, for an error; empty where they agree, or there are none."""
    path, words, digest = folder / "config.toml", folder / "word_vectors.sha256", _digest_of_words(cell.config)
    if not (_is_begun(folder) and path.exists()):
        return ""
    if other := difference(cell.config, load_recipe(path), FREE_SETTINGS):
        return f"{folder} holds results of other settings: {other}. Give the same, or another --out."
    if digest and words.exists() and words.read_text(encoding="utf-8") != digest:
        return (
            f"{folder} holds results of other word vectors than {cell.config.data.word_vectors}. Give the same, "
            f"or another --out."
        )
    return ""


def _is_begun(folder: Path) -> bool:
    return (folder / "results.json").exists() or any(folder.glob("fitted-*.safetensors"))


def _digest_of_words(config: Config) -> str:
    """Of the word vectors' content, wherever their file is; empty if the method needs none, or there is no file."""
    path = config.data.word_vectors if METHODS[config.method].needs_words else ""
    if path == "glyphs":  # come with fscil
        return path
    return digest_of_file(Path(path)) if Path(path).is_file() else ""


def describe_data(config: Config, load: Callable[[Config], Dataset]) -> dict[str, Any]:
    """The data set's name and, unless that determines them, its classes with their numbers of images."""
    if config.data.name in KNOWN_DATA:
        return {"name": config.data.name}
    dataset = load(config)
    train, test = dataset.train.counts, dataset.test.counts
    classes = {name: [train.get(label, 0), test.get(label, 0)] for label, name in enumerate(dataset.class_names)}
    return {"name": config.data.name, "classes": classes}


def data_difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """The first difference between two descriptions of data; empty where they agree."""
    if there["name"] != here["name"]:
        return f"{there['name']} there, {here['name']} here"
    old, new = there.get("classes", {}), here.get("classes", {})
    for name in [*old, *new]:
        (train, test), (new_train, new_test) = (classes.get(name, (0, 0)) for classes in (old, new))
        if (train, test) != (new_train, new_test):
            return f'"{name}" has {train} training and {test} test images there, {new_train} and {new_test} here'
    return ""
