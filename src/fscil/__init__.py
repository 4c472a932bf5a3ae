"""Few-shot class-incremental image classification: train once, then learn new classes from one to five images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fscil.augment import mix_classes, pair_label
    from fscil.classifier import Classifier, Prediction
    from fscil.config import Config, load_recipe
    from fscil.gallery import balanced_indices
    from fscil.losses import angular_penalty
    from fscil.methods import METHODS, Alice
    from fscil.metrics import harmonic_accuracy
    from fscil.models import build_backbone
    from fscil.protocol import Protocol, published_draw
    from fscil.runtime.allocator import tune_allocator

__version__ = "0.1.0"

# Where each public name lives. It is imported when first asked for, so that `import fscil` stays light.
_HOMES = {
    "METHODS": "methods",
    "Alice": "methods",
    "Classifier": "classifier",
    "Config": "config",
    "Prediction": "classifier",
    "Protocol": "protocol",
    "angular_penalty": "losses",
    "balanced_indices": "gallery",
    "build_backbone": "models",
    "harmonic_accuracy": "metrics",
    "load_recipe": "config",
    "mix_classes": "augment",
    "pair_label": "augment",
    "published_draw": "protocol",
    "tune_allocator": "runtime.allocator",
}

__all__ = [
    "METHODS",
    "Alice",
    "Classifier",
    "Config",
    "Prediction",
    "Protocol",
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
    if name not in _HOMES:
        raise AttributeError(f"module 'fscil' has no attribute {name!r}")
    return getattr(import_module(f"fscil.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
