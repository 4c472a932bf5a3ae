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
from fscil.features import FeatureExtractor
from fscil.gallery import balanced_means, class_means, cosine_scores
from fscil.methods.base import Memory
from fscil.training.base_training import BaseNetwork, base_network, base_step, pretrain
from fscil.training.build import backbone_of, preprocess_of
from fscil.training.loop import Step, Trainer, load_state


class Alice:
    """Per base class it keeps the all-data mean and, for each k in shots, the mean of the k nearest to it."""

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = (), blank: bool = False) -> None:
        """blank: leave out the recipe's initial weights, because trained ones will be loaded."""
        self.config, self.trainer = config, trainer
        self.preprocess = preprocess_of(config)
        finished = trainer.run is not None and trainer.run.finished
        self.backbone = backbone_of(config, blank or finished).to(trainer.device)
        self.features = FeatureExtractor(self.backbone, self.preprocess, trainer.device, quiet=trainer.quiet)
        self._all = torch.empty(0, self.backbone.feature_dim)  # (base classes, d)
        self._nearest: dict[int, Tensor] = {}  # shots -> (base classes, d)
        self._novel = torch.empty(0, self.backbone.feature_dim)  # (novel classes, d)
        self._shots = 0  # images per class in the sessions learned; 0 before the first

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.train_backbone(base)
        self.describe_base(base, shots)

    @staticmethod
    def base_recipe(config: Config) -> Config:
        """Angular penalty, class augmentation, two views and a projection are what a recipe asks for as it stands."""
        return config

    def network(self, classes: int) -> BaseNetwork:
        return base_network(self.config, self.trainer, self.backbone, classes)

    def step(self, network: BaseNetwork, classes: int) -> Step:
        return base_step(self.config, network, classes)

    def train_backbone(self, base: Images) -> None:
        """Projection and classifier are thrown away with the network that is returned."""
        pretrain(self.config, self.trainer, self.backbone, base)
        self.features.forget()

    # Balanced testing: every class is the mean of as many features.

    def describe_base(self, base: Images, shots: Sequence[int]) -> None:
        """Prototypes of the base classes; after this their images are no longer needed."""
        features, labels, classes = self.features(base), torch.from_numpy(base.labels), len(base.counts)
        self._all = class_means(features, labels, classes)
        self._nearest = {k: balanced_means(features, labels, classes, k) for k in shots}
        self._novel, self._shots = self._novel[:0], 0

    def learn(self, new: Images) -> None:
        first = len(self._all) + len(self._novel)
        if sorted(new.counts) != list(range(first, first + len(new.counts))):
            raise ProtocolError(f"the next new classes must be numbered from {first}; got {sorted(new.counts)}.")
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
        weights = {f"backbone.{name}": value.detach().clone() for name, value in self.backbone.state_dict().items()}
        nearest = {f"base.{k}": means for k, means in self._nearest.items()}
        return {**weights, **nearest, "base.all": self._all, "novel": self._novel, "shots": torch.tensor(self._shots)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        weights = {
            name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")
        }
        self.load_backbone(weights, "the state")
        self._all, self._novel, self._shots = state["base.all"], state["novel"], int(state["shots"])
        self._nearest = {
            int(name.removeprefix("base.")): means
            for name, means in state.items()
            if name.startswith("base.") and name != "base.all"
        }

    def load_backbone(self, weights: dict[str, Tensor], source: str) -> None:
        """Features already extracted stay valid where the weights are the ones there are."""
        own = self.backbone.state_dict()
        if own.keys() == weights.keys() and all(torch.equal(own[name].cpu(), weights[name].cpu()) for name in own):
            return
        load_state(self.backbone, weights, source)
        self.features.forget()
