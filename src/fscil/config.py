"""Typed, frozen settings: TOML recipes with dotted overrides, where an unknown key is an error with a suggestion."""

import difflib
import json
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fscil.errors import ConfigError


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are stored once decoded."""

    name: str = "folder"
    resize: int | tuple[int, int] | None = None  # short side, or height and width, or as it is
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    statistics: Literal["auto", "cifar10", "imagenet"] = "auto"  # auto: the pretrained network's own, else cifar10
    test_share: float = 0.2  # held out per class where a folder has no test part
    word_vectors: str = ""  # file with a vector per class name, for the methods that use what names mean


@dataclass(frozen=True)
class ProtocolConfig:
    """Which classes come when."""

    base_classes: int | None = None  # none: 60% of the classes
    way: int = 5
    sessions: int | None = None  # none: as many as the classes allow
    shots: tuple[int, ...] = (5, 1)
    draw: Literal["published"] | int = "published"  # or the seed of a draw
    order: tuple[str, ...] = ()  # class names; empty: the data set's own order


@dataclass(frozen=True)
class ViewsConfig:
    """How a training image is varied."""

    count: int = 2
    size: int = 32
    first_size: int | None = None  # training begins with smaller views, which cost less; none: with the full size
    grown: float = 0.5  # share of training after which they have the full size
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8  # probability of the four below
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2


@dataclass(frozen=True)
class MixingConfig:
    """Class augmentation: new classes made of pairs."""

    repeats: int = 4  # 0 turns it off
    start: float = 0.0  # share of training after which it begins
    pairs: int = 0  # at most this many pairs are classes, drawn by the seed; 0: all of them
    lam: Literal["uniform", "beta"] = "uniform"


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    backbone: str = "resnet18"
    stem: Literal["cifar", "half", "imagenet"] = "cifar"
    width: int = 64
    init: Literal["scratch", "pretrained"] = "scratch"
    weights: str = ""  # file with weights to start from
    projection: int = 2048  # hidden and output size of the projection head; 0: none
    head: Literal["cosine", "linear"] = "cosine"


@dataclass(frozen=True)
class LossConfig:
    """What base training minimises."""

    kind: Literal["cosface", "arcface", "sphereface", "softmax"] = "cosface"
    scale: float = 30.0
    margin: float = 0.4
    margin_warmup: float = 0.0  # share of training in which the margin grows from 0 to its value


@dataclass(frozen=True)
class TrainConfig:
    """How base training goes."""

    epochs: int = 100
    batch: int = 128
    lr: float = 0.01
    schedule: Literal["step", "onecycle"] = "step"
    drops: tuple[int, ...] = (60, 70)  # epochs after which the rate is multiplied by gamma
    gamma: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    seed: int = 0
    selection: Literal["last", "validation"] = "last"
    validation_share: float = 0.1  # of the base training data, when selection is "validation"
    checkpoint_minutes: float = 5.0
    compile: Literal["off", "inductor", "aot_eager"] = "off"  # by torch.compile; the last one generates no code


@dataclass(frozen=True)
class IncrementalConfig:
    """How the compared systems that go on training learn a session; ALICE does not train then."""

    steps: int = 100  # per session; docs/methods.md says which systems take more
    batch: int = 128
    lr: float = 0.1
    exemplars: int = 5  # images kept per class, by the systems that keep any


@dataclass(frozen=True)
class TestConfig:
    """How test images and prototypes are made."""

    resize: int | None = None  # short side before the centre crop of views.size; none: as stored
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    prototypes: Literal["balanced", "all"] = "balanced"


# Settings by the smallest and the largest value they may have; of a list, each item.
_RANGES: dict[tuple[float, float], tuple[str, ...]] = {
    (0, 0.5): ("views.hue",),
    (0, 1): (
        *("views.flip", "views.jitter", "views.grayscale", "views.grown", "mixing.start", "loss.margin_warmup"),
        "train.momentum",
    ),
    (0, math.inf): (
        *("protocol.sessions", "protocol.draw", "views.brightness", "views.contrast", "views.saturation"),
        *("mixing.repeats", "mixing.pairs", "model.projection", "loss.scale", "train.epochs", "train.lr"),
        *("train.gamma", "train.weight_decay", "train.seed", "train.checkpoint_minutes", "incremental.steps"),
        "incremental.lr",
    ),
    (1, math.inf): (
        *("data.resize", "protocol.base_classes", "protocol.way", "protocol.shots", "views.count", "views.size"),
        "views.first_size",
        *("model.width", "test.resize", "incremental.batch", "incremental.exemplars"),
    ),
    (2, math.inf): ("train.batch",),
}


@dataclass(frozen=True)
class Config:
    """Everything that decides a result, apart from the images themselves."""

    about: str = ""
    method: str = "alice"  # see fscil.methods
    data: DataConfig = field(default_factory=DataConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    mixing: MixingConfig = field(default_factory=MixingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    incremental: IncrementalConfig = field(default_factory=IncrementalConfig)
    test: TestConfig = field(default_factory=TestConfig)

    def __post_init__(self) -> None:
        settings = flatten(self)
        for (low, high), keys in _RANGES.items():
            for key in keys:
                values = settings[key] if isinstance(settings[key], list) else [settings[key]]
                if any(isinstance(value, int | float) and not low <= value <= high for value in values):
                    allowed = f"at least {low}" if high == math.inf else f"between {low} and {high}"
                    raise ConfigError(f"{key} = {settings[key]}: must be {allowed}.")
        if not self.protocol.shots:
            raise ConfigError("protocol.shots is empty: give at least one number of shots, for instance 5.")
        if not 0 < self.train.validation_share < 1:
            raise ConfigError(f"train.validation_share = {self.train.validation_share}: must be between 0 and 1.")
        if not 0 < self.data.test_share < 1:
            raise ConfigError(f"data.test_share = {self.data.test_share}: must be between 0 and 1.")
        smallest, largest = self.views.scale
        if not 0 < smallest <= largest <= 1:
            raise ConfigError(f"views.scale = [{smallest}, {largest}]: must be 0 < low <= high <= 1.")
        if self.views.first_size and self.views.first_size > self.views.size:
            raise ConfigError(
                f"views.first_size = {self.views.first_size}: views grow, so that it must be at most views.size "
                f"({self.views.size})."
            )
        narrowest, widest = self.views.ratio
        if not 0 < narrowest <= widest:
            raise ConfigError(f"views.ratio = [{narrowest}, {widest}]: must be 0 < low <= high.")
        if self.loss.kind == "sphereface" and self.loss.margin_warmup:
            raise ConfigError("sphereface multiplies the angle: a margin that grows from 0 makes no sense for it.")
        if self.loss.kind == "sphereface" and self.loss.margin < 1:
            raise ConfigError("sphereface multiplies the angle: its loss.margin must be at least 1, for instance 2.")
        if self.model.head == "linear" and self.loss.kind != "softmax":
            raise ConfigError('model.head = "linear" gives no cosines: it needs loss.kind = "softmax".')


def from_mapping(content: Mapping[str, Any], where: str = "recipe", start: Config | None = None) -> Config:
    """A Config of nested plain values; keys that are absent keep what start has."""
    config: Config = _fill(start or Config(), content, "", where)
    return config


def _fill(settings: Any, content: Mapping[str, Any], prefix: str, where: str) -> Any:
    hints = get_type_hints(type(settings))
    changes: dict[str, Any] = {}
    for key, value in content.items():
        if key not in hints:
            inner = next(iter(value), "") if isinstance(value, Mapping) else ""
            name = f"{prefix}{key}.{inner}" if inner else prefix + key
            raise ConfigError(f"{where}: unknown key {name}.{_nearest(name)}")
        current = getattr(settings, key)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{key} is a section, not a value.")
            changes[key] = _fill(current, value, f"{prefix}{key}.", where)
        else:
            changes[key] = _convert(value, hints[key], f"{where}: {prefix}{key}")
    return replace(settings, **changes)


def _nearest(key: str) -> str:
    known = list(flatten(Config()))
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    # "lr" instead of "train.lr": the last word is what people remember.
    near = near or [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    return f' Did you mean "{near[0]}"?' if near else f" Known keys: {', '.join(known)}."


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value as the hint wants it; TOML has no none and no tuple, and 1 is a fine float."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        origin, inner = get_origin(option), get_args(option)
        if option is NoneType and (value is None or value == "none"):
            return None
        if origin is Literal and value in inner:
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if origin is tuple and isinstance(value, list | tuple):
            if inner[-1] is Ellipsis:
                return tuple(_convert(item, inner[0], key) for item in value)
            if len(value) == len(inner):
                return tuple(_convert(item, kind, key) for item, kind in zip(value, inner, strict=True))
    raise ConfigError(f"{key} = {value!r}: expected {' or '.join(map(_spell, options))}.")


def _spell(hint: Any) -> str:
    if hint is NoneType:
        return "none"
    if get_origin(hint) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted names and plain values of all settings."""
    found: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            found |= flatten(value, f"{prefix}{item.name}.")
        else:
            found[prefix + item.name] = list(value) if isinstance(value, tuple) else value
    return found


def difference(mine: Config, there: Config, free: Collection[str] = ()) -> str:
    """The first setting in which they differ, and how many more; empty where they agree. The free ones do not count."""
    ours, theirs = flatten(mine), flatten(there)
    differing = [key for key in ours if ours[key] != theirs[key] and key not in free]
    if not differing:
        return ""
    key, more = differing[0], len(differing) - 1
    return f"{key} = {theirs[key]} there, {ours[key]} here" + (f", and {more} more" if more else "")


def override(config: Config, assignments: Iterable[str]) -> Config:
    """`train.lr=0.1`, `protocol.shots=[5,1]`, `model.stem=imagenet`: values as in TOML, quotes not needed.

    All take effect together, so that settings which only fit as a pair can be given in either order.
    """
    content: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f'--set {assignment}: expected key=value, for instance "train.lr=0.1".')
        try:
            value = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        content = _merge(content, value)
    return from_mapping(content, "--set", config)


def _merge(old: Any, new: Any) -> Any:
    """Nested mappings joined; where both have a value, the new one."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _merge(old.get(key), value) for key, value in new.items()}


def recipe_names() -> list[str]:
    return sorted(
        item.name.removesuffix(".toml")
        for item in (resources.files("fscil") / "recipes").iterdir()
        if item.name.endswith(".toml")
    )


def load_recipe(name: str | Path, assignments: Sequence[str] = ()) -> Config:
    """A recipe that comes with fscil, by name, or a user's own TOML file, by path."""
    if str(name) in recipe_names():
        content = (resources.files("fscil") / "recipes" / f"{name}.toml").read_bytes()
    elif Path(name).is_file():
        content = Path(name).read_bytes()
    else:
        near = difflib.get_close_matches(str(name), recipe_names(), n=1)
        hint = f' Did you mean "{near[0]}"?' if near else ""
        raise ConfigError(f"no recipe or file named {name}.{hint} Recipes: {', '.join(recipe_names())}.")
    try:
        settings = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {name}: not valid TOML ({error}).") from error
    return override(from_mapping(settings, f"recipe {name}"), assignments)


def to_toml(config: Config) -> str:
    """Text that load_recipe reads back to the same Config."""
    lines = [f"about = {_toml(config.about)}", f"method = {_toml(config.method)}"]
    for section, content in asdict(config).items():
        if isinstance(content, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in content.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # TOML and JSON agree on strings, numbers and booleans, except that TOML wants this one character escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
