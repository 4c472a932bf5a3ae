"""Recipes: the TOML files that come with fscil, a user's own, and the one written into a run folder."""

import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from fscil.config.parsing import from_mapping, override
from fscil.config.settings import Config
from fscil.errors import ConfigError
from fscil.runtime.regular_files import read_regular
from fscil.runtime.text import did_you_mean

MAX_BYTES = 2**24  # of a recipe
MAX_SHOWN = 200  # characters of a name in a message


def recipe_names() -> list[str]:
    """The recipes that come with fscil."""
    return sorted(
        item.name.removesuffix(".toml")
        for item in (resources.files("fscil") / "recipes").iterdir()
        if item.name.endswith(".toml")
    )


def load_recipe(name: str | Path, assignments: Sequence[str] = ()) -> Config:
    """The settings of a recipe.

    Parameters
    ----------
    name : str or Path
        A recipe that comes with fscil, by name (see `fscil recipes`), or a TOML file of your own, by path. Keys that
        it leaves out keep their default.
    assignments : sequence of str
        Settings to change, as for `--set`: `train.lr=0.1`. See `override`.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        Where there is no such recipe or file, where it is not TOML, and for keys and values that `override` rejects.

    Examples
    --------
    >>> from fscil import load_recipe
    >>> config = load_recipe("cifar100", ["model.width=16"])
    >>> config.data.name, config.protocol.base_classes, config.model.width
    ('cifar100', 60, 16)
    """
    if str(name) in recipe_names():
        content = (resources.files("fscil") / "recipes" / f"{name}.toml").read_bytes()
    elif _is_file(name):
        try:
            content = read_regular(Path(name), MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"recipe {name}: cannot be read ({error.strerror or error}).") from error
    else:
        known, hint = recipe_names(), did_you_mean(str(name), recipe_names())
        raise ConfigError(f"no recipe or file named {str(name)[:MAX_SHOWN]}.{hint} Recipes: {', '.join(known)}.")
    try:
        settings = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, too many digits, too many brackets
        raise ConfigError(f"recipe {name}: not valid TOML ({error}).") from error
    return override(from_mapping(settings, f"recipe {name}"), assignments)


def _is_file(name: str | Path) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a name that is too long, or in a folder that must not be read
        return False


def to_toml(config: Config) -> str:
    """Text that load_recipe reads back to the same Config."""
    return tomli_w.dumps(_without_none(asdict(config)))


def _without_none(content: dict[str, Any]) -> dict[str, Any]:
    """TOML has no none: it is written as the text "none"."""
    return {
        key: _without_none(value) if isinstance(value, dict) else "none" if value is None else value
        for key, value in content.items()
    }
