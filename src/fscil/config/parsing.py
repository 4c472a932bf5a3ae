"""From plain values, as TOML holds them, to a Config: every key known, every value of its field's type."""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fscil.config.bounds import short
from fscil.config.settings import Config, flatten
from fscil.errors import ConfigError
from fscil.runtime.text import did_you_mean


def from_mapping(content: Mapping[str, Any], where: str = "recipe", start: Config | None = None) -> Config:
    """A Config of nested plain values; keys that are absent keep their value in start. where: named in errors."""
    config: Config = _fill(start or Config(), content, "", where)
    return config


def override(config: Config, assignments: Iterable[str]) -> Config:
    """A Config with some settings changed.

    All assignments take effect together, so that settings which only fit as a pair can be given in either order.

    Parameters
    ----------
    config : Config
    assignments : iterable of str
        `key=value` with values as in TOML, where text needs no quotes: `train.lr=0.1`, `protocol.shots=[5,1]`,
        `model.stem=imagenet`. Of several for one key, the last counts.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        For an unknown key, a value of the wrong type or out of its bounds, and settings that do not fit each other.

    Examples
    --------
    >>> from fscil.config import load_recipe, override
    >>> override(load_recipe("glyphs"), ["train.epochs=3", "model.stem=imagenet"]).train.epochs
    3
    """
    content: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f'--set {assignment}: expected key=value, for instance "train.lr=0.1".')
        value = _toml_value(text.strip())
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        content = _merge(content, value)
    return from_mapping(content, "--set", config)


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, too many digits, too many brackets
        return text


def _merge(old: Any, new: Any) -> Any:
    """Nested mappings joined; where both have a value, the new one."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _merge(old.get(key), value) for key, value in new.items()}


def _fill(settings: Any, content: Mapping[str, Any], prefix: str, where: str) -> Any:
    hints = get_type_hints(type(settings))
    changes: dict[str, Any] = {}
    for key, value in content.items():
        if key not in hints:
            inner = next(iter(value), "") if isinstance(value, Mapping) else ""
            name = f"{prefix}{key}.{inner}" if inner else prefix + key
            raise ConfigError(f"{where}: unknown key {name}.{_suggestion(name)}")
        current = getattr(settings, key)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{key} is a section, not a value.")
            changes[key] = _fill(current, value, f"{prefix}{key}.", where)
        else:
            changes[key] = _convert(value, hints[key], f"{where}: {prefix}{key}")
    return replace(settings, **changes)


def _suggestion(key: str) -> str:
    known = list(flatten(Config()))
    # "lr" instead of "train.lr": the last word is what people remember.
    same_word = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    first = did_you_mean(key, same_word, cutoff=0.0) if "." not in key else ""
    near = first or did_you_mean(key, known, cutoff=0.5) or did_you_mean(key, same_word, cutoff=0.0)
    return near or f" Known keys: {', '.join(known)}."


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value as the hint wants it; TOML has no none and no tuple, and 1 is a fine float."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        origin, inner = get_origin(option), get_args(option)
        if option is NoneType and (value is None or value == "none"):
            return None
        if origin is Literal and value in inner:
            return value
        if option is float and _is_finite(value):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if origin is tuple and isinstance(value, list | tuple):
            if inner[-1] is Ellipsis:
                return tuple(_convert(item, inner[0], key) for item in value)
            if len(value) == len(inner):
                return tuple(_convert(item, kind, key) for item, kind in zip(value, inner, strict=True))
    raise ConfigError(f"{key} = {short(value)}: expected {' or '.join(map(_spell, options))}.")


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def _spell(hint: Any) -> str:
    if hint is NoneType:
        return "none"
    if get_origin(hint) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]
