"""Few-shot class-incremental image classification: train once, then learn new classes from one to five images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fscil.classifier import Classifier, Prediction, Thresholds
    from fscil.config import Config, load_recipe
    from fscil.data import DATASETS
    from fscil.gallery import balanced_indices
    from fscil.losses import LOSSES, angular_penalty
    from fscil.methods import METHODS, Alice
    from fscil.metrics import harmonic_accuracy
    from fscil.mixing import mix_classes, pair_label
    from fscil.models import BACKBONES, build_backbone
    from fscil.protocol import Protocol, published_draw
    from fscil.runtime.allocator import tune_allocator

__version__ = "0.2.0"

# The module of each public name, imported on first use, so that `import fscil` stays light.
_MODULES = {
    "BACKBONES": "models",
    "DATASETS": "data",
    "LOSSES": "losses",
    "METHODS": "methods",
    "Alice": "methods",
    "Classifier": "classifier",
    "Config": "config",
    "Prediction": "classifier",
    "Protocol": "protocol",
    "Thresholds": "classifier",
    "angular_penalty": "losses",
    "balanced_indices": "gallery",
    "build_backbone": "models",
    "harmonic_accuracy": "metrics",
    "load_recipe": "config",
    "mix_classes": "mixing",
    "pair_label": "mixing",
    "published_draw": "protocol",
    "tune_allocator": "runtime.allocator",
}

__all__ = [
    "BACKBONES",
    "DATASETS",
    "LOSSES",
    "METHODS",
    "Alice",
    "Classifier",
    "Config",
    "Prediction",
    "Protocol",
    "Thresholds",
    "__version__",
    "angular_penalty",
    "balanced_indices",
    "build_backbone",
    "harmonic_accuracy",
    "load_recipe",
    "mix_classes",
    "pair_label",
    "published_draw",
    "tune_allocator",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fscil' has no attribute {name!r}")
    return getattr(import_module(f"fscil.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
