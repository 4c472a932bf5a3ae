"""OrCo (Ahmed, Kukleva and Schiele, CVPR 2024): orthogonal targets for all classes, and contrast that keeps them apart.

Base training is contrastive, supervised and self-supervised. Then every base class gets the nearest of a set of
orthogonal targets, and the projection is aligned to them; the targets that are left keep room for classes to come. A
session gives its classes the nearest targets that are free and aligns the projection again, on its images and the
exemplars. Alignment is contrast with perturbed targets among the images, cross-entropy, and orthogonality of classes.
"""

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace

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
from fscil.methods.toolkit.train_on_images import train_on_images
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
SELF_SUPERVISED = 0.1  # weight of that contrast in base training
TEMPERATURE = 0.07  # of all contrasts
PERTURBATION = 0.01  # largest difference of a perturbed target in each dimension
ALIGNED_EPOCHS, ALIGNED_LR = 10, 0.25  # of the alignment of base classes; epochs at most
VIEWS = 2


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
        yield (
            supervised_contrast(vectors, labels, TEMPERATURE)
            + SELF_SUPERVISED * self_supervised_contrast(vectors, len(batch.labels), TEMPERATURE)
        )

    def extras(self) -> dict[str, Tensor]:
        return {**with_prefix("projection", self.projection), "targets": self.targets}


def assigned(means: Tensor, targets: Tensor) -> Tensor:
    """(classes, d) and (K, d) unit vectors -> (classes,) the target of each: the sum of cosines is the largest."""
    _, chosen = linear_sum_assignment((means @ targets.T).double().numpy(), maximize=True)
    return torch.from_numpy(np.asarray(chosen, np.int64))


def orthogonality(vectors: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The mean over the classes of a batch of log mean exp of the cosines between the class's mean and all others.

    vectors: (n, d) unit vectors; labels: (n,). A class that is not in the batch stands with its target, as those do
    that no class has yet: targets (K, d).
    """
    present = torch.bincount(labels).nonzero().squeeze(1)
    sums = torch.zeros_like(targets).index_add(0, labels, vectors)
    places = targets.index_copy(0, present, F.normalize(sums[present]))
    itself = torch.arange(len(targets), device=targets.device) == present[:, None]
    cosines = (places[present] @ places.T).masked_fill(itself, -torch.inf)
    return cosines.logsumexp(1).mean() - math.log(max(1, len(targets) - 1))


def alignment(vectors: Tensor, labels: Tensor, targets: Tensor, perturbed: Tensor, classes: int, base: int) -> Tensor:
    """The OrCo loss of (n, d) unit vectors, of `classes` classes the first `base` of which are base classes.

    targets: (K, d), in the order of classes; perturbed: (P, K, d), of all of them. Base and new classes have the same
    weight in the cross-entropy, whatever their numbers.
    """
    target_labels = torch.arange(len(targets), device=labels.device).repeat(len(perturbed))
    everything = torch.cat([vectors, perturbed.flatten(0, 1)])
    contrast = supervised_contrast(everything, torch.cat([labels, target_labels]), TEMPERATURE)
    entropy = F.cross_entropy(vectors @ targets[:classes].T, labels, reduction="none")
    parts = [entropy[part].mean() for part in (labels < base, labels >= base) if bool(part.any())]
    return contrast + torch.stack(parts).mean() + orthogonality(vectors, labels, targets)


class Orco(FixedTargetMethod):
    """Keeps exemplars. Every session starts from the projection of the base classes, which is kept too."""

    title = "OrCo"
    table_order = 155
    made_by = "orco"
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
        batch = self.recipe.incremental.batch
        self._align(base, 0, ALIGNED_LR, _aligned_epochs(self.config) * steps_per_epoch(len(base), batch))
        self.of_base.load_state_dict(self.projection.state_dict())
        self._keep_exemplars(base)

    def learn(self, new: Images) -> None:
        self.projection.load_state_dict(self.of_base.state_dict())
        first = self.add_classes(new)
        self._assign(new, first)
        self._align(joined(self.exemplars, new), first, self.lr, self.steps)
        self._keep_exemplars(new)

    def _assign(self, images: Images, first: int) -> None:
        """Move the targets that suit the classes of these images best to their places."""
        labels = torch.from_numpy(images.labels - first)
        means = F.normalize(class_means(self.projected(self.features(images)), labels, len(images.counts)))
        free = self.targets[first:]
        chosen = assigned(means, free.cpu()).to(free.device)
        others = torch.ones(len(free), dtype=torch.bool, device=free.device).index_fill(0, chosen, False)
        self.targets = torch.cat([self.targets[:first], free[chosen], free[others]])

    def _align(self, images: Images, first: int, lr: float, steps: int) -> None:
        device, targets = self.context.device, self.targets
        random = generator_of(self.config.train.seed, first)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.backbone(views)
            vectors = F.normalize(self.projection(features))
            noise = 2 * torch.rand(VIEWS, *targets.shape, generator=random).to(device) - 1
            perturbed = F.normalize(targets + PERTURBATION * noise, dim=2)
            return alignment(vectors, labels, targets, perturbed, self.classes, self.base_classes)

        trained, what = list(self.projection.parameters()), self.title
        train_on_images(trained, images, loss, self.recipe, self.context, what, first, lr, steps, count=VIEWS)

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
