"""A network that goes on learning, backbone and classifier together, and the methods that hold one."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError, StoreError
from fscil.features import FeatureCache
from fscil.gallery import class_means
from fscil.methods.base import Method
from fscil.methods.toolkit.distillation import frozen
from fscil.methods.toolkit.imprinting import FeatureMoments, imprinted
from fscil.models import CosineHead
from fscil.models.state import load_state, of_prefix, same_state, with_prefix
from fscil.training.base_training import PLAIN_SCALE, TrainedNetwork
from fscil.training.build import evaluation_crops_of
from fscil.training.context import Context


class GrowingNetwork:
    """A backbone under a cosine classifier that gains outputs.

    It is in eval mode also while it is trained: five images are too few for BatchNorm statistics.
    """

    def __init__(self, recipe: Config, network: TrainedNetwork, context: Context) -> None:
        """recipe: of base training."""
        if not isinstance(network.head, CosineHead):
            raise StoreError(
                "this base network has no cosine classifier on its features, which the method needs to add classes to. "
                "Train it again, by the method's own base recipe."
            )
        self.recipe, self._device = recipe, context.device
        self.backbone, self.head = network.backbone.to(context.device).eval(), network.head.to(context.device)
        self.features = FeatureCache(self.backbone, evaluation_crops_of(recipe), context.device, quiet=context.quiet)

    def _new_head(self, outputs: int) -> CosineHead:
        return CosineHead(self.backbone.feature_dim, outputs).to(self._device)

    def weights_changed(self) -> None:
        """After training: cached features are no longer valid."""
        self.features.clear()

    def __call__(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, classes): cosines, at the scale of base training"""
        return self.classify(self.backbone(images))

    def classify(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, classes): cosines, at the scale of base training"""
        scores: Tensor = PLAIN_SCALE * self.head(features)
        return scores

    def frozen_copy(self) -> Callable[[Tensor], Tensor]:
        """The network as it is now, as the teacher of a distillation: (n, 3, h, w) -> (n, classes)"""
        copy = frozen(self.backbone, self.head)
        return lambda images: PLAIN_SCALE * copy(images)

    def grow(self, new: Images, base: FeatureMoments) -> int:
        """An output for each new class, as `imprinted` gives it. Returns the first one's number."""
        old = self.head.weight.detach()
        self.set_class_vectors(torch.cat([old, self.imprinted(new, base)]))
        return len(old)

    def imprinted(self, new: Images, base: FeatureMoments) -> Tensor:
        """(new classes, d) class vectors to start from, as long as the old ones. base: of base images' features."""
        old = self.head.weight.detach()
        check_numbers(new, len(old))
        labels = torch.from_numpy(new.labels - len(old))
        means = class_means(F.normalize(self.features(new)), labels, len(new.counts))
        # A cosine does not depend on the length of a class vector, but the size of a step of SGD does.
        length: Tensor = old.norm(dim=1).mean()
        return imprinted(means, old.cpu(), base).to(old.device) * length

    def set_class_vectors(self, vectors: Tensor) -> None:
        """(classes, d): the weights of the classifier, as many outputs as there are vectors."""
        self.head = self._new_head(len(vectors))
        self.head.weight.data.copy_(vectors)

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        """(n, classes) cosines on the host, from features computed once."""
        found: Tensor = self.head(self.features(images).to(self.head.weight.device)).cpu()
        return found

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*"""
        return {**with_prefix("backbone", self.backbone), **with_prefix("head", self.head)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        head, backbone = of_prefix("head", state), of_prefix("backbone", state)
        self.head = self._new_head(len(head["weight"]))
        load_state(self.head, head, "the state")
        if not same_state(self.backbone, backbone):
            load_state(self.backbone, backbone, "the state")
            self.weights_changed()


class NetworkMethod(Method):
    """A method that holds a growing network; by default the scores are those of its classifier."""

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.network = GrowingNetwork(self.base_recipe(config), network, context)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        """The trained network knows the base classes already."""

    def scores(self, images: Images) -> Tensor:
        return self.network.scores(images)

    def own_state(self) -> dict[str, Tensor]:
        """What the method keeps beside the network."""
        return {}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        """Restore what own_state gave; the network has been restored before."""

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*, and own_state"""
        return {**self.network.state(), **self.own_state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
        self.load_own_state(state)


def check_numbers(new: Images, first: int) -> None:
    """The classes of a session must follow those seen before it."""
    expected: Sequence[int] = range(first, first + len(new.counts))
    if sorted(new.counts) != list(expected):
        raise ProtocolError(f"the next new classes must be numbered from {first}; got {sorted(new.counts)}.")
