"""NC-FSCIL (Yang et al., ICLR 2023): class vectors fixed as a simplex, for all classes to come; features go there.

In a trained network the class means and the classifier become a simplex ("neural collapse"). Here the classifier is one
from the beginning, and base training draws the features to it by dot-regression. Then the backbone is frozen, and a
session trains the projection on the features of its images and the stored means of the classes before, in most steps
on what lies halfway between two of them, so that new classes take places that nothing else has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.gallery import class_means
from fscil.methods.base import Memory
from fscil.methods.toolkit.fixed_targets import FixedTargetMethod, dimension, simplex
from fscil.methods.toolkit.train_on_features import Schedule, generator_of, train_on_features
from fscil.models import Backbone
from fscil.models.state import with_prefix
from fscil.training.base_network import OBJECTIVES, BaseNetwork, Objective
from fscil.training.base_training import TrainedNetwork, plain_recipe
from fscil.training.batches import Batch
from fscil.training.build import views_of
from fscil.training.context import Context

DIMENSION = 512  # of the projection, at least
WEIGHT = 10.0  # of the loss
SLOPE = 0.1  # of the leaky ReLUs
MOMENTUM = 0.9
LARGEST_GRADIENT = 0.3  # of a session: without a limit (math.inf), some sessions ended with everything forgotten
MIXED = 0.75  # share of a session's steps in which the projected features are mixed
RATES_UNMIXED = {"cub200": 0.05, "mini_imagenet": 0.025}  # the data sets without mixing, and their rates in sessions
RATE = 7.0  # of base training, times that of the recipe: dot-regression has small gradients


class ResidualProjection(nn.Module):
    """(n, inputs) -> (n, outputs): three layers beside a linear shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        hidden = 2 * inputs
        self.layers = nn.Sequential(
            *(nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.LeakyReLU(SLOPE)),
            *(nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.LeakyReLU(SLOPE)),
            nn.Linear(hidden, outputs, bias=False),
        )
        self.shortcut = nn.Linear(inputs, outputs, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        mapped: Tensor = self.layers(features) + self.shortcut(features)
        return mapped


def dot_regression(mapped: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """(n, d) mapped features, which are normalised here, and the unit vectors (n, d) of their classes: half the square
    of what the dot product lacks of 1; the mean, weighted by (n,) weights where there are some.

    Its gradient pulls a feature to its class vector and pushes it from none: the others are far from it already.
    """
    lacking = (F.normalize(mapped) * targets).sum(1) - 1
    return 0.5 * (lacking.square() if weights is None else weights * lacking.square()).mean()


def mixed_regression(mapped: Tensor, labels: Tensor, partners: Tensor, targets: Tensor) -> Tensor:
    """Dot-regression of (n, d) mapped features, each half and half with its partner's: half for the class vector of the
    one, half for that of the other. labels, partners: (n,); targets: (K, d). Classes weigh the same.
    """
    between, others = (mapped + mapped[partners]) / 2, labels[partners]
    own = dot_regression(between, targets[labels], balanced(labels))
    return (own + dot_regression(between, targets[others], balanced(others))) / 2


def balanced(labels: Tensor) -> Tensor:
    """(n,) weights of mean 1 that give every class in the batch the same weight."""
    counts = torch.bincount(labels)
    return len(labels) / (counts > 0).sum() / counts[labels]


@OBJECTIVES.register("nc_fscil")
class NcFscilObjective(Objective):
    """The projection and the simplex."""

    divisible = True
    targets: Tensor

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        super().__init__(recipe, backbone, classes)
        dim = dimension(classes, DIMENSION)
        self.projection = ResidualProjection(backbone.feature_dim, dim)
        self.register_buffer("targets", simplex(dim, recipe.train.seed))

    def losses(self, network: BaseNetwork, batch: Batch) -> Iterable[Tensor]:
        views = views_of(self.recipe, batch.progress)(batch.pixels, batch.sizes, batch.generator, batch.part)
        targets = self.targets[batch.labels.to(views.device, non_blocking=True)]
        for view in views:
            features = self.encoded(network.backbone, view[None], batch).float()
            yield WEIGHT * dot_regression(self.projection(features), targets) / len(views)

    def extras(self) -> dict[str, Tensor]:
        return {**with_prefix("projection", self.projection), "targets": self.targets}


class NcFscil(FixedTargetMethod):
    """Keeps the mean feature of each class."""

    title = "NC-FSCIL"
    table_order = 140
    made_by = "nc_fscil"
    session_lr = 0.25
    session_lr_of_data = RATES_UNMIXED
    session_steps = 300

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.means = torch.zeros(0, self.backbone.feature_dim)  # (classes, d)

    @classmethod
    def new_projection(cls, inputs: int, outputs: int) -> nn.Module:
        return ResidualProjection(inputs, outputs)

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        plain = plain_recipe(config)
        train = replace(plain.train, objective="nc_fscil", lr=RATE * plain.train.lr, compile="off")
        return replace(plain, train=train)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.classes, self.means = 0, self.means[:0]
        self._keep(base, self.add_classes(base))

    def learn(self, new: Images) -> None:
        first = self.add_classes(new)
        device = self.context.device
        features = torch.cat([self.features(new), self.means]).to(device)
        labels = torch.cat([torch.from_numpy(new.labels), torch.arange(first)]).to(device)

        generator = generator_of(self.config.train.seed, first)
        mixes = self.config.data.name not in RATES_UNMIXED

        def loss(chosen: Tensor, target: Tensor) -> Tensor:
            mapped = self.projection(chosen)
            if mixes and float(torch.rand((), generator=generator)) < MIXED:
                partners = torch.randperm(len(target), generator=generator).to(device)
                return WEIGHT * mixed_regression(mapped, target, partners, self.targets)
            return WEIGHT * dot_regression(mapped, self.targets[target], balanced(target))

        schedule = Schedule(self.steps, len(labels), self.lr, MOMENTUM, LARGEST_GRADIENT)
        train_on_features(
            self.projection, lambda: (features, labels), loss, schedule, generator, self.context, self.title
        )
        self._keep(new, first)

    def _keep(self, images: Images, first: int) -> None:
        labels = torch.from_numpy(images.labels - first)
        self.means = torch.cat([self.means, class_means(self.features(images), labels, len(images.counts))])

    def memory(self) -> Memory:
        return Memory(floats=self.means.numel())

    def own_state(self) -> dict[str, Tensor]:
        """projection.*, targets, classes, means"""
        return {**super().own_state(), "means": self.means}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.means = state["means"]
