"""Typed, frozen settings: TOML recipes with dotted overrides, where an unknown key is an error with a suggestion."""

from fscil.config.parsing import from_mapping, override
from fscil.config.recipes import load_recipe, recipe_names, to_toml
from fscil.config.settings import (
    Config,
    DataConfig,
    EvaluationConfig,
    IncrementalConfig,
    LossConfig,
    MixingConfig,
    ModelConfig,
    ProtocolConfig,
    TrainConfig,
    ViewsConfig,
    difference,
    flatten,
)

__all__ = [
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "IncrementalConfig",
    "LossConfig",
    "MixingConfig",
    "ModelConfig",
    "ProtocolConfig",
    "TrainConfig",
    "ViewsConfig",
    "difference",
    "flatten",
    "from_mapping",
    "load_recipe",
    "override",
    "recipe_names",
    "to_toml",
]
