"""Methods whose class vectors are fixed before training, for classes to come too: features are mapped to them."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError, StoreError
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.methods.toolkit.session_settings import SessionSettings
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.runtime.memory import rows_per_chunk
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context


def dimension(classes: int, least: int) -> int:
    """Of the space of the targets, and their number: a power of two, at least twice the number of base classes."""
    return max(least, 1 << (2 * classes - 1).bit_length())


def orthonormal(dim: int, seed: int) -> Tensor:
    """(dim, dim): a random basis, one vector in each row."""
    random = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(random).Q
    return basis.T.contiguous().float()


def simplex(dim: int, seed: int) -> Tensor:
    """(dim, dim): the simplex equiangular tight frame, unit vectors of which any two have the cosine -1 / (dim - 1)."""
    basis = orthonormal(dim, seed)
    return F.normalize(basis - basis.mean(0))


class FixedTargetMethod(SessionSettings, FrozenFeatureMethod):
    """A frozen backbone and a projection, trained on the base classes and in sessions, towards fixed targets.

    Needs of base training: the extras `projection.*` and `targets` (K, dim), in the order of classes.
    """

    made_by: ClassVar[str]  # the objective that leaves them

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        if "targets" not in network.extras:
            raise StoreError(
                f"this base network has no projection and no targets, which {self.title} needs. Train it again, by the "
                f'method\'s own base recipe (train.objective = "{self.made_by}").'
            )
        self.targets = network.extras["targets"].to(context.device)
        self.projection = self.new_projection(self.backbone.feature_dim, self.targets.shape[1]).to(context.device)
        load_state(self.projection, of_prefix("projection", network.extras), "the base network")
        self.projection.eval()
        self.classes = 0  # seen so far

    @classmethod
    def new_projection(cls, inputs: int, outputs: int) -> nn.Module:
        """(n, inputs) -> (n, outputs), initialised at random."""
        raise NotImplementedError

    def add_classes(self, images: Images) -> int:
        """Count the classes of these images as seen; returns the first one's number."""
        first = self.classes
        check_numbers(images, first)
        if first + len(images.counts) > len(self.targets):
            raise ProtocolError(
                f"{self.title} has {len(self.targets)} class vectors, fixed in base training, and {first} of them are "
                f"taken: there are none for {len(images.counts)} more classes."
            )
        self.classes = first + len(images.counts)
        return first

    @torch.inference_mode()
    def projected(self, features: Tensor) -> Tensor:
        """(n, d) features on the host -> (n, dim) unit vectors on the host"""
        parts = torch.split(features, rows_per_chunk(self.targets.shape[1]))
        return torch.cat([F.normalize(self.projection(part.to(self.context.device))).cpu() for part in parts])

    def scores(self, images: Images) -> Tensor:
        return self.projected(self.features(images)) @ self.targets[: self.classes].cpu().T

    def memory(self) -> Memory:
        return Memory()

    def own_state(self) -> dict[str, Tensor]:
        """projection.*, targets, classes"""
        targets = {"targets": self.targets.cpu().clone(), "classes": torch.tensor(self.classes)}
        return {**with_prefix("projection", self.projection), **targets}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.classes, self.targets = int(state["classes"]), state["targets"].to(self.context.device)
        load_state(self.projection, of_prefix("projection", state), "the state")
