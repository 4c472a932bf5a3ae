"""Networks: backbones that turn an image into a feature, and the heads that training puts on top."""

from fscil.models.backbone import Backbone, last_block, parameter_count
from fscil.models.build import (
    BACKBONES,
    EXTRAS,
    INPUT_STATISTICS,
    backbone_options,
    build_backbone,
    native_size,
    native_statistics,
)
from fscil.models.folding import folded
from fscil.models.heads import CosineHead, Projection
from fscil.models.weights import load_weights

__all__ = [
    "BACKBONES",
    "EXTRAS",
    "INPUT_STATISTICS",
    "Backbone",
    "CosineHead",
    "Projection",
    "backbone_options",
    "build_backbone",
    "folded",
    "last_block",
    "load_weights",
    "native_size",
    "native_statistics",
    "parameter_count",
]
