"""OrCo (Ahmed, Kukleva and Schiele, CVPR 2024): orthogonal targets for all classes, and contrast that keeps them apart.

Base training is contrastive, supervised and self-supervised. Then every base class gets the nearest of a set of
orthogonal targets, and the projection is aligned to them; the targets that are left keep room for classes to come. A
session gives its classes the nearest targets that are free and aligns the projection again, on its images and the
exemplars. Alignment is contrast with perturbed targets among the images, cross-entropy, and orthogonality of classes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ConfigError
from fscil.gallery import class_means
from fscil.methods.base import Memory
from fscil.methods.toolkit.contrast import self_supervised_contrast, supervised_contrast
from fscil.methods.toolkit.exemplars import NO_IMAGES, from_tensors, herded, joined, to_tensors
from fscil.methods.toolkit.fixed_targets import FixedTargetMethod, dimension, orthonormal
from fscil.methods.toolkit.train_on_features import generator_of
from fscil.methods.toolkit.train_on_images import WEIGHT_DECAY, Descent, train_on_images
from fscil.models import Backbone
from fscil.models.state import load_state, of_prefix, with_prefix
from fscil.protocol import Protocol
from fscil.training.base_network import OBJECTIVES, BaseNetwork, Objective
from fscil.training.base_training import TrainedNetwork, plain_recipe
from fscil.training.batches import Batch, steps_per_epoch
from fscil.training.build import views_of
from fscil.training.context import Context

DIMENSION = 128  # of the projection, at least
HIDDEN = 2048  # of the projection, at most; otherwise eight times the features
VIEWS = 2

# Base training
SELF_SUPERVISED = 0.1  # share of that contrast in the loss
CONTRAST_TEMPERATURE = 0.2

# Alignment
TEMPERATURE = 0.07  # of its contrast
PERTURBATION = 0.005  # largest difference of a perturbed target in each dimension
SMALL_PERTURBATION = 4.5e-5  # on CIFAR100
ALIGNED_EPOCHS, ALIGNED_LR, ALIGNED_BATCH = 10, 0.25, 128  # of base classes; epochs and batch at most
FINE_GRAINED = "cub200"  # the data set for whose sessions the authors have settings of their own
DAMPENING = 0.9  # of the momentum: a step is as long as the rate says, not ten times that


@dataclass(frozen=True)
class Alignment:
    """What the alignment of base classes and those of sessions differ in."""

    learned: int  # the first of the classes that it is about; the ones before it are old
    old: float  # weight of the cross-entropy of images of old classes
    new: float  # and of the others
    batch: int
    descent: Descent


def base_alignment(batch: int) -> Alignment:
    """Of the base classes, at a constant rate."""
    return Alignment(0, 0.0, 1.0, batch, Descent(WEIGHT_DECAY, DAMPENING, math.inf, decays=False))


def session_alignment(base: int, fine_grained: bool, largest_batch: int) -> Alignment:
    """After `base` base classes: with the authors' settings for CUB200, or those for CIFAR100 and miniImageNet."""
    old, batch, decay = (0.6, 32, 1e-5) if fine_grained else (0.0, 64, 1e-4)
    return Alignment(base, old, 0.5, min(batch, largest_batch), Descent(decay, DAMPENING, math.inf, warm_up=0.1))


def new_projection(inputs: int, outputs: int) -> nn.Sequential:
    """(n, inputs) -> (n, outputs), with one hidden layer."""
    hidden = min(HIDDEN, 8 * inputs)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@OBJECTIVES.register("orco")
class OrcoObjective(Objective):
    """The projection, and the targets, which are not used before base training has ended."""

    divisible = True
    targets: Tensor

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        super().__init__(recipe, backbone, classes)
        if recipe.views.count < VIEWS:
            raise ConfigError('train.objective = "orco" compares views of an image: set views.count to at least 2.')
        dim = dimension(classes, DIMENSION)
        self.projection = new_projection(backbone.feature_dim, dim)
        self.register_buffer("targets", orthonormal(dim, recipe.train.seed))

    def losses(self, network: BaseNetwork, batch: Batch) -> Iterable[Tensor]:
        views = views_of(self.recipe, batch.progress)(batch.pixels, batch.sizes, batch.generator, batch.part)
        labels = batch.labels.to(views.device, non_blocking=True).repeat(len(views))
        features = self.encoded(network.backbone, views, batch).float()
        vectors = F.normalize(self.projection(features))
        supervised = supervised_contrast(vectors, labels, CONTRAST_TEMPERATURE)
        of_views = self_supervised_contrast(vectors, len(batch.labels), CONTRAST_TEMPERATURE)
        yield (1 - SELF_SUPERVISED) * supervised + SELF_SUPERVISED * of_views

    def extras(self) -> dict[str, Tensor]:
        return {**with_prefix("projection", self.projection), "targets": self.targets}


def assigned(means: Tensor, targets: Tensor) -> Tensor:
    """(classes, d) and (K, d) unit vectors -> (classes,) the target of each: the sum of cosines is the largest."""
    _, chosen = linear_sum_assignment((means @ targets.T).double().numpy(), maximize=True)
    return torch.from_numpy(np.asarray(chosen, np.int64))


def orthogonality(vectors: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The mean over all places of log mean exp of the cosines between a place and all of them.

    The place of a class is the direction of its mean vector in a batch: vectors (n, d) of unit length, labels (n,).
    That of a class which is not in the batch is its target, as it is for those that no class has yet: targets (K, d).
    """
    present = torch.bincount(labels).nonzero().squeeze(1)
    sums = torch.zeros_like(targets).index_add(0, labels, vectors)
    places = targets.index_copy(0, present, F.normalize(sums[present]))
    return (places @ places.T).logsumexp(1).mean() - math.log(len(targets))


def perturbed(
    targets: Tensor, first: int, count: int, largest: float, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(VIEWS * count, d) unit vectors near targets from `first` on, and whose: each of these equally often, or drawn.

    Every one has been perturbed once for each view, with differences of at most `largest` in a dimension.
    """
    free = len(targets) - first
    whose = first + torch.randperm(free, generator=random).repeat(-(-count // max(1, free)))[:count].repeat(VIEWS)
    noise = largest * (2 * torch.rand(len(whose), targets.shape[1], generator=random) - 1)
    whose = whose.to(targets.device)
    return F.normalize(targets[whose] + noise.to(targets)), whose


def largest_perturbation(config: Config) -> float:
    """Of a target in each dimension, on the recipe's data set."""
    return SMALL_PERTURBATION if config.data.name == "cifar100" else PERTURBATION


def orco_loss(
    vectors: Tensor,
    labels: Tensor,
    targets: Tensor,
    near: Tensor,
    whose: Tensor,
    classes: int,
    settings: Alignment,
) -> Tensor:
    """Contrast with perturbed targets, cross-entropy over the targets of `classes` classes, and orthogonality.

    vectors: (VIEWS * n, d) unit vectors, view by view, and their labels; targets: (K, d) in the order of classes; near,
    whose: (P, d) perturbed targets and their numbers.
    """
    contrast = supervised_contrast(torch.cat([vectors, near]), torch.cat([labels, whose]), TEMPERATURE)
    entropy = F.cross_entropy(vectors @ targets[:classes].T, labels, reduction="none")
    new = labels >= settings.learned
    parts = [
        weight * entropy[part].mean()
        for weight, part in ((settings.old, ~new), (settings.new, new))
        if weight and bool(part.any())
    ]
    first_view = torch.arange(len(labels), device=labels.device) < len(labels) // VIEWS
    counted = new & first_view
    return contrast + sum(parts, entropy.new_zeros(())) + orthogonality(vectors[counted], labels[counted], targets)


class Orco(FixedTargetMethod):
    """Keeps exemplars. Every session starts from the projection of the base classes, which is kept too."""

    title = "OrCo"
    table_order = 155
    made_by = "orco"
    session_lr_of_data: ClassVar[Mapping[str, float]] = {FINE_GRAINED: 0.05}
    session_steps = 100
    images_seen_note = f"OrCo's alignment of base classes is counted too, at most {ALIGNED_EPOCHS} epochs of two views"
    exemplars: Images = NO_IMAGES
    base_classes = 0

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.recipe = self.base_recipe(config)
        self.backbone.eval()  # statistics of BatchNorm stay those of base training
        self.trained = deepcopy(self.projection)  # by contrast
        self.of_base = deepcopy(self.projection)  # aligned to the base classes

    @classmethod
    def new_projection(cls, inputs: int, outputs: int) -> nn.Module:
        return new_projection(inputs, outputs)

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """Two views, as strong as the recipe's own."""
        plain = plain_recipe(config)
        views = replace(config.views, count=VIEWS)
        return replace(plain, views=views, train=replace(plain.train, objective="orco", compile="off"))

    @classmethod
    def images_seen(cls, config: Config, base: Images, protocol: Protocol) -> float:
        return super().images_seen(config, base, protocol) + VIEWS * len(base) * _aligned_epochs(config)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.projection.load_state_dict(self.trained.state_dict())
        self.classes, self.exemplars, self.base_classes = 0, NO_IMAGES, len(base.counts)
        self._assign(base, self.add_classes(base))
        batch = min(ALIGNED_BATCH, self.config.train.batch)
        steps = _aligned_epochs(self.config) * steps_per_epoch(len(base), batch)
        self._align(base, 0, base_alignment(batch), ALIGNED_LR, steps)
        self.of_base.load_state_dict(self.projection.state_dict())
        self._keep_exemplars(base)

    def learn(self, new: Images) -> None:
        self.projection.load_state_dict(self.of_base.state_dict())
        first = self.add_classes(new)
        self._assign(new, first)
        images = joined(self.exemplars, new)
        fine_grained, batch = self.config.data.name == FINE_GRAINED, self.config.incremental.batch
        settings = session_alignment(self.base_classes, fine_grained, batch)
        self._align(images, first, settings, self.lr, self.steps)
        self._keep_exemplars(new)

    def _assign(self, images: Images, first: int) -> None:
        """Move the targets that suit the classes of these images best to their places."""
        labels = torch.from_numpy(images.labels - first)
        means = F.normalize(class_means(self.projected(self.features(images)), labels, len(images.counts)))
        free = self.targets[first:]
        chosen = assigned(means, free.cpu()).to(free.device)
        others = torch.ones(len(free), dtype=torch.bool, device=free.device).index_fill(0, chosen, False)
        self.targets = torch.cat([self.targets[:first], free[chosen], free[others]])

    def _align(self, images: Images, first: int, settings: Alignment, lr: float, steps: int) -> None:
        """first: of the newest classes. Perturbed are the targets of new classes and of none, never of base classes."""
        targets, random = self.targets, generator_of(self.config.train.seed, first)
        largest = largest_perturbation(self.config)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.backbone(views)
            vectors = F.normalize(self.projection(features))
            near, whose = perturbed(targets, self.base_classes, len(labels) // VIEWS, largest, random)
            return orco_loss(vectors, labels, targets, near, whose, self.classes, settings)

        recipe = replace(self.recipe, incremental=replace(self.recipe.incremental, batch=settings.batch))
        trained, what = list(self.projection.parameters()), self.title
        train_on_images(
            trained, images, loss, recipe, self.context, what, first, lr, steps, settings.descent, count=VIEWS
        )

    def _keep_exemplars(self, images: Images) -> None:
        chosen = herded(images, self.features(images), self.config.incremental.exemplars)
        self.exemplars = joined(self.exemplars, chosen)

    def memory(self) -> Memory:
        return Memory(images=len(self.exemplars))

    def own_state(self) -> dict[str, Tensor]:
        """projection.*, targets, classes, projection_of_base.*, base_classes, exemplars.*"""
        kept = {"base_classes": torch.tensor(self.base_classes), **to_tensors(self.exemplars)}
        return {**super().own_state(), **with_prefix("projection_of_base", self.of_base), **kept}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        load_state(self.of_base, of_prefix("projection_of_base", state), "the state")
        self.base_classes, self.exemplars = int(state["base_classes"]), from_tensors(state)


def _aligned_epochs(config: Config) -> int:
    return min(ALIGNED_EPOCHS, config.train.epochs)
