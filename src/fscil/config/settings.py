"""All settings by section, with their defaults, their bounds, and the checks of those that must fit each other."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeAlias

from fscil.config.bounds import FLOAT32, Between, check_bounds
from fscil.errors import ConfigError

Share: TypeAlias = Annotated[float, Between(0, 1)]
NonNegative: TypeAlias = Annotated[float, Between(0, FLOAT32)]
Count: TypeAlias = Annotated[int, Between(1, 10**6)]
CountOrZero: TypeAlias = Annotated[int, Between(0, 10**6)]
PIXELS = Between(1, 16_384)


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are stored once decoded."""

    name: str = "folder"
    resize: Annotated[int | tuple[int, int] | None, PIXELS] = None  # short side; height and width; none: unchanged
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    statistics: Literal["auto", "cifar10", "imagenet"] = "auto"  # auto: the pretrained network's own, else cifar10
    test_share: Annotated[float, Between(0, 1, exclusive=True)] = (
        0.2  # held out per class where a folder has no test part
    )
    word_vectors: str = ""  # file with a vector per class name, for methods that use the meaning of class names


@dataclass(frozen=True)
class ProtocolConfig:
    """Which classes each session has."""

    base_classes: Annotated[int | None, Between(1, 10**6)] = None  # none: 60% of the classes
    way: Count = 5
    sessions: Annotated[int | None, Between(0, 10**6)] = None  # none: as many as the classes allow
    ways: Annotated[tuple[int, ...], Between(1, 10**6)] = ()  # new classes of each session where they differ
    shots: Annotated[tuple[int, ...], Between(1, 10**6)] = (5, 1)
    draw: Annotated[Literal["published"] | int, Between(0, 2**63 - 1)] = "published"  # or the seed of a draw
    order: tuple[str, ...] = ()  # class names; empty: the data set's own order


@dataclass(frozen=True)
class ViewsConfig:
    """Augmentation: how the views of a training image are made."""

    kind: Literal["resized", "crops"] = "resized"  # random resized crops, or padded crops at the scale of test images
    padding: Share = 0.125  # of a padded crop: black border on each side, as a share of size (4 pixels at 32)
    count: Annotated[int, Between(1, 1000)] = 2
    size: Annotated[int, PIXELS] = 32
    first_size: Annotated[int | None, PIXELS] = None  # of the first views: smaller ones cost less; none: size
    grown: Share = 0.5  # share of training after which views have their full size
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: Annotated[tuple[float, float], Between(0, FLOAT32)] = (3 / 4, 4 / 3)
    flip: Share = 0.5
    jitter: Share = 0.8  # probability of the four below
    brightness: NonNegative = 0.4
    contrast: NonNegative = 0.4
    saturation: NonNegative = 0.4
    hue: Annotated[float, Between(0, 0.5)] = 0.1
    grayscale: Share = 0.2


@dataclass(frozen=True)
class MixingConfig:
    """Class augmentation: new classes made of pairs."""

    repeats: Annotated[int, Between(0, 1000)] = 4  # 0 turns it off
    start: Share = 0.0  # share of training after which it begins
    pairs: Annotated[int, Between(0, 10**9)] = 0  # at most this many pairs are classes, drawn by the seed; 0: all
    lam: Literal["uniform", "beta"] = "uniform"


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    backbone: str = "resnet18"  # see fscil.models.BACKBONES
    stem: Literal["cifar", "half", "imagenet"] = "cifar"
    width: Annotated[int, Between(1, 1024)] = 64
    init: Literal["scratch", "pretrained"] = "scratch"
    weights: str = ""  # file with weights to start from
    projection: Annotated[int, Between(0, 16_384)] = 2048  # hidden and output size of the projection head; 0: none
    head: Literal["cosine", "linear"] = "cosine"
    initialisation: Literal["kaiming", "torch"] = "kaiming"  # of convolutions: normal by fan-out, or torch's default
    last_relu: bool = True  # false leaves out the last ReLU of a ResNet, so that features have both signs


@dataclass(frozen=True)
class LossConfig:
    """What base training minimises."""

    kind: str = "cosface"  # see fscil.losses.LOSSES
    scale: NonNegative = 30.0
    margin: Annotated[float, Between(-FLOAT32, FLOAT32)] = 0.4
    margin_warmup: Share = 0.0  # share of training in which the margin grows from 0 to its value


@dataclass(frozen=True)
class TrainConfig:
    """Base training: optimiser, schedule, choice of the result."""

    objective: str = ""  # of fscil.training.base_network.OBJECTIVES, with a loss of its own; empty: that of [loss]
    epochs: CountOrZero = 100
    batch: Annotated[int, Between(2, 10**6)] = 128
    optimizer: str = "sgd"  # see fscil.training.optimizers.OPTIMIZERS
    lr: NonNegative = 0.01
    schedule: Literal["step", "onecycle"] = "step"
    drops: Annotated[tuple[int, ...], Between(0, 10**6)] = (60, 70)  # epochs after which lr is multiplied by gamma
    gamma: NonNegative = 0.1
    momentum: Share = 0.9
    nesterov: bool = True
    weight_decay: NonNegative = 5e-4
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0  # scikit-learn takes no larger ones
    selection: Literal["last", "validation"] = "last"
    validation_share: Annotated[float, Between(0, 1, exclusive=True)] = (
        0.1  # of the base training data, when selection is "validation"
    )
    freeze_batchnorm: bool = False  # keep the backbone's BatchNorm statistics as they are: for fine-tuning
    checkpoint_minutes: NonNegative = 5.0
    precision: Literal["fp32", "bf16"] = "fp32"  # of the forward pass; weights and their updates are always float32
    compile: Literal["off", "inductor", "aot_eager"] = "off"  # by torch.compile; the last one generates no code


@dataclass(frozen=True)
class IncrementalConfig:
    """Training in sessions, by the compared systems that do so; ALICE does not."""

    steps: Annotated[int | None, Between(0, 10**6)] = None  # per session; none: the method's own number
    batch: Count = 128
    lr: Annotated[float | None, Between(0, FLOAT32)] = None  # none: the method's own
    trainable: Literal["auto", "all", "last_block", "head"] = "auto"  # what a session trains; auto: the method's own
    exemplars: Count = 5  # images kept per class, by the systems that keep any
    episodes: Annotated[int | None, Between(0, 10**6)] = None  # of cec; none: 50 for each epoch of base training


@dataclass(frozen=True)
class EvaluationConfig:
    """How test images and prototypes are made."""

    resize: Annotated[int | None, PIXELS] = None  # short side before the centre crop of views.size; none: as stored
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    prototypes: Literal["balanced", "all"] = "balanced"
    crops: Literal[1, 2, 10] = 1  # whose features are averaged: the centre; and its mirror image; and four corners


@dataclass(frozen=True)
class Config:
    """Everything that decides a result, apart from the images themselves.

    Parameters
    ----------
    about : str
        What the recipe is for.
    method : str
        One of `fscil.METHODS`.
    data, protocol, views, mixing, model, loss, train, incremental, test
        The sections, each a frozen dataclass with a default for every setting.

    Raises
    ------
    ConfigError
        For a setting out of its bounds, and for settings that do not fit each other.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from fscil import Config
    >>> config = Config()
    >>> replace(config, train=replace(config.train, epochs=5)).train.epochs
    5
    """

    about: str = ""
    method: str = "alice"  # see fscil.methods.METHODS
    data: DataConfig = field(default_factory=DataConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    mixing: MixingConfig = field(default_factory=MixingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    incremental: IncrementalConfig = field(default_factory=IncrementalConfig)
    test: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        for item in fields(self):
            section = getattr(self, item.name)
            if is_dataclass(section):
                check_bounds(section, f"{item.name}.")
        if not self.protocol.shots:
            raise ConfigError("protocol.shots is empty: give at least one number of shots, for instance 5.")
        smallest, largest = self.views.scale
        if not 0 < smallest <= largest <= 1:
            raise ConfigError(f"views.scale = [{smallest}, {largest}]: must be 0 < low <= high <= 1.")
        narrowest, widest = self.views.ratio
        if not 0 < narrowest <= widest:
            raise ConfigError(f"views.ratio = [{narrowest}, {widest}]: must be 0 < low <= high.")
        if self.views.first_size and self.views.first_size > self.views.size:
            raise ConfigError(
                f"views.first_size = {self.views.first_size}: views grow, so it must be at most views.size "
                f"({self.views.size})."
            )
        if self.loss.kind == "sphereface" and self.loss.margin_warmup:
            raise ConfigError("sphereface multiplies the angle: a margin that grows from 0 makes no sense for it.")
        if self.loss.kind == "sphereface" and self.loss.margin < 1:
            raise ConfigError("sphereface multiplies the angle: its loss.margin must be at least 1, for instance 2.")
        if self.model.head == "linear" and self.loss.kind != "softmax":
            raise ConfigError('model.head = "linear" gives no cosines: it needs loss.kind = "softmax".')
        if self.train.objective and self.mixing.repeats:
            raise ConfigError(f'train.objective = "{self.train.objective}" mixes no classes: set mixing.repeats = 0.')


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


def difference(mine: Config, there: Config, ignored: Collection[str] = ()) -> str:
    """The first setting in which they differ, and how many more; empty where they agree, but for the ignored keys."""
    ours, theirs = flatten(mine), flatten(there)
    differing = [key for key in ours if ours[key] != theirs[key] and key not in ignored]
    if not differing:
        return ""
    key, more = differing[0], len(differing) - 1
    return f"{key} = {theirs[key]} there, {ours[key]} here" + (f", and {more} more" if more else "")
