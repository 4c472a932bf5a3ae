"""Methods whose backbone stays as base training left it: what they learn, they learn from features."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.features import FeatureCache
from fscil.gallery import class_means
from fscil.methods.base import Method
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.models.state import load_state, of_prefix, same_state, with_prefix
from fscil.training.base_training import TrainedNetwork
from fscil.training.build import evaluation_crops_of
from fscil.training.context import Context


def tukey(features: Tensor, power: float = 0.5) -> Tensor:
    """(n, d) Tukey's power transform, which makes features less skewed: signed power, then unit length, float64."""
    wide = features.double()
    return F.normalize(wide.sign() * wide.abs() ** power, dim=1)


class FrozenFeatureMethod(Method):
    """Holds the backbone and a cache of features; a subclass decides what it keeps of a class."""

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.backbone = network.backbone.to(context.device)
        self.features = FeatureCache(self.backbone, evaluation_crops_of(config), context.device, quiet=context.quiet)

    def own_state(self) -> dict[str, Tensor]:
        """What there is beside the backbone."""
        return {}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        """Put back what own_state gave."""

    def state(self) -> dict[str, Tensor]:
        """backbone.*, and own_state"""
        return {**with_prefix("backbone", self.backbone), **self.own_state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        weights = of_prefix("backbone", state)
        if not same_state(self.backbone, weights):  # otherwise features already extracted stay valid
            load_state(self.backbone, weights, "the state")
            self.features.clear()
        self.load_own_state(state)

    def means_of(self, images: Images, first: int) -> Tensor:
        """(classes, d): the mean feature of each class of these images, which are numbered from `first`."""
        check_numbers(images, first)
        return class_means(self.features(images), torch.from_numpy(images.labels - first), len(images.counts))
