"""ALICE (Peng et al., ECCV 2022): augmented angular loss for the base classes, then balanced nearest class means.

Base training sees every image in two random views, each joined by mixtures of two classes that count as classes of
their own, and asks the cosine classifier behind a projection head for a margin. Then projection and classifier are
thrown away, the backbone is frozen, and a class is the mean of a few features.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fscil.augment import mix_classes, total_classes
from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError
from fscil.features import FeatureExtractor
from fscil.gallery import balanced_means, class_means, cosine_scores
from fscil.losses import LOSSES
from fscil.methods.base import Memory
from fscil.methods.parts import backbone_of, preprocess_of, views_of
from fscil.models import Backbone, CosineHead, Projection
from fscil.preprocess import normalise
from fscil.training import Batch, Trainer, load_state


class AngularNetwork(nn.Module):
    """Backbone, projection and classifier as they are trained together."""

    def __init__(self, backbone: Backbone, config: Config, outputs: int) -> None:
        super().__init__()
        hidden = config.model.projection
        self.backbone = backbone
        self.projection = Projection(backbone.feature_dim, hidden, hidden) if hidden else nn.Identity()
        head = CosineHead if config.model.head == "cosine" else nn.Linear
        self.head = head(hidden or backbone.feature_dim, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, outputs)"""
        scores: Tensor = self.head(self.projection(self.backbone(images)))
        return scores


class Alice:
    """Per base class it keeps the all-data mean and, for each k in shots, the mean of the k nearest to it."""

    def __init__(self, config: Config, trainer: Trainer, blank: bool = False) -> None:
        """blank: leave out the recipe's initial weights, because trained ones will be loaded."""
        self.config, self.trainer = config, trainer
        self.preprocess = preprocess_of(config)
        self.backbone = backbone_of(config, blank).to(trainer.device)
        self.features = FeatureExtractor(self.backbone, self.preprocess, trainer.device, quiet=trainer.quiet)
        self._all = torch.empty(0, self.backbone.feature_dim)  # (base classes, d)
        self._nearest: dict[int, Tensor] = {}  # shots -> (base classes, d)
        self._novel = torch.empty(0, self.backbone.feature_dim)  # (novel classes, d)
        self._shots = 0  # images per class in the sessions learned; 0 before the first

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.train_backbone(base)
        self.describe_base(base, shots)

    # Base training: angular penalty, class augmentation, two views.

    def network(self, classes: int) -> AngularNetwork:
        """The network to train on this many base classes; with class augmentation, each pair has an output too."""
        outputs = total_classes(classes) if self.config.mixing.repeats else classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.train.seed)
            return AngularNetwork(self.backbone, self.config, outputs).to(self.trainer.device)

    def step(self, network: AngularNetwork, classes: int) -> Callable[[Batch], Tensor]:
        """The loss of one batch: the mean over its views, each of which passes the network on its own."""
        views_of_batch, mixing, loss = views_of(self.config), self.config.mixing, LOSSES[self.config.loss.kind]
        scale, full_margin, warmup = self.config.loss.scale, self.config.loss.margin, self.config.loss.margin_warmup

        def step(batch: Batch) -> Tensor:
            margin = full_margin * min(1.0, batch.progress / warmup) if warmup else full_margin
            labels = batch.labels
            views = views_of_batch(batch.pixels, batch.sizes, batch.generator)
            views = normalise(views, self.preprocess.mean, self.preprocess.std)
            mixed = mixing.repeats > 0 and batch.progress >= mixing.start
            if mixed:
                views, labels = mix_classes(views, labels, classes, mixing.repeats, mixing.lam, batch.generator)
            target = labels.to(views.device, non_blocking=True)
            outputs = total_classes(classes) if mixed else classes
            scores = [
                network(view.contiguous(memory_format=torch.channels_last))[:, :outputs].float() for view in views
            ]
            return torch.stack([loss(each, target, scale, margin) for each in scores]).mean()

        return step

    def train_backbone(self, base: Images) -> None:
        classes = len(base.counts)
        network = self.network(classes)
        train, held_out = self._validation_split(base)
        validate = (lambda: self._validation_accuracy(train, held_out)) if held_out else None
        self.trainer.fit(network, train, self.step(network, classes), validate)
        self.features.forget()

    def _validation_split(self, base: Images) -> tuple[Images, Images | None]:
        """A share of each base class, held out where the recipe chooses the result by validation."""
        if self.config.train.selection == "last":
            return base, None
        chosen = np.zeros(len(base), bool)
        random = np.random.default_rng(self.config.train.seed)
        for label, count in base.counts.items():
            members = random.permutation(np.flatnonzero(base.labels == label))
            chosen[members[: min(count - 1, max(1, round(count * self.config.train.validation_share)))]] = True
        return base.select(~chosen), base.select(chosen)

    def _validation_accuracy(self, train: Images, held_out: Images) -> float:
        """Of the nearest class mean, which is what the features are for."""
        self.features.forget()
        means = class_means(self.features(train), torch.from_numpy(train.labels), len(train.counts))
        nearest = cosine_scores(self.features(held_out), means).argmax(1)
        return float((nearest == torch.from_numpy(held_out.labels)).float().mean())

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
