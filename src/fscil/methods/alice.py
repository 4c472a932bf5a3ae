"""ALICE (Peng et al., ECCV 2022): augmented angular loss for the base classes, then balanced nearest class means.

Base training sees every image in two random views, each joined by mixtures of two classes that count as classes of
their own, and asks the cosine classifier behind a projection head for a margin. Then projection and classifier are
thrown away, the backbone is frozen, and a class is the mean of a few features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError
from fscil.features import FeatureCache
from fscil.gallery import balanced_means, class_means, cosine_scores
from fscil.methods.base import Memory, Method
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.models.state import load_state, of_prefix, same_state, with_prefix
from fscil.training.base_training import TrainedNetwork
from fscil.training.build import preprocess_of
from fscil.training.context import Context


class Alice(Method):
    """Per base class it keeps the all-data mean and, for each k in shots, the mean of the k nearest to it."""

    title = "ALICE"
    table_order = 10
    highlighted = True

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.backbone = network.backbone.to(context.device)
        self.features = FeatureCache(self.backbone, preprocess_of(config), context.device, quiet=context.quiet)
        self._all = torch.empty(0, self.backbone.feature_dim)  # (base classes, d)
        self._nearest: dict[int, Tensor] = {}  # shots -> (base classes, d)
        self._novel = torch.empty(0, self.backbone.feature_dim)  # (novel classes, d)
        self._shots = 0  # images per class in the sessions learned; 0 before the first

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """Angular penalty, class augmentation, two views and a projection are what a recipe asks for as it stands."""
        return config

    # Balanced testing: every class is the mean of as many features.

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        """Prototypes of the base classes; after this their images are no longer needed."""
        features, labels, classes = self.features(base), torch.from_numpy(base.labels), len(base.counts)
        self._all = class_means(features, labels, classes)
        self._nearest = {k: balanced_means(features, labels, classes, k) for k in shots}
        self._novel, self._shots = self._novel[:0], 0

    def learn(self, new: Images) -> None:
        first = len(self._all) + len(self._novel)
        check_numbers(new, first)
        means = class_means(self.features(new), torch.from_numpy(new.labels - first), len(new.counts))
        self._novel = torch.cat([self._novel, means])
        self._shots = max(new.counts.values())

    def scores(self, images: Images) -> Tensor:
        """Before the first new class there is nothing to balance with: the base classes stand with all their data."""
        everything = self.config.test.prototypes == "all" or not self._shots
        base = self._all if everything else self._balanced(self._shots)
        return cosine_scores(self.features(images), torch.cat([base, self._novel]))

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        """Before the first session: what balanced prototypes would give."""
        if self._shots or self.config.test.prototypes == "all":
            return {}
        features = self.features(images)
        return {f"balanced, {k}-shot": cosine_scores(features, near) for k, near in self._nearest.items()}

    def _balanced(self, shots: int) -> Tensor:
        if shots not in self._nearest:
            known = ", ".join(map(str, self._nearest))
            raise ProtocolError(f"base prototypes were made for {known} shots, not for {shots}.")
        return self._nearest[shots]

    def memory(self) -> Memory:
        kept = [self._all, self._novel, *self._nearest.values()]
        return Memory(images=0, floats=sum(tensor.numel() for tensor in kept))

    def state(self) -> dict[str, Tensor]:
        """backbone.*, base.all, base.<shots>, novel, shots"""
        nearest = {f"base.{k}": means for k, means in self._nearest.items()}
        means = {**nearest, "base.all": self._all, "novel": self._novel, "shots": torch.tensor(self._shots)}
        return {**with_prefix("backbone", self.backbone), **means}

    def load_state(self, state: dict[str, Tensor]) -> None:
        weights = of_prefix("backbone", state)
        if not same_state(self.backbone, weights):  # otherwise features already extracted stay valid
            load_state(self.backbone, weights, "the state")
            self.features.clear()
        base = of_prefix("base", state)
        self._all, self._novel, self._shots = base.pop("all"), state["novel"], int(state["shots"])
        self._nearest = {int(shots): means for shots, means in base.items()}
