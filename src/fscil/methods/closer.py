"""CLOSER (Oh, Baik and Lee, ECCV 2024): features that spread, of classes that are close to each other.

Base training adds two terms to cross-entropy on cosines. Self-supervised contrast tells every image from all others,
which spreads features and makes them useful for new classes; the distance between images of different classes is
minimised, so that they spread in a confined space. Then the backbone is frozen, and a class is a mean of features.
"""

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.errors import ConfigError
from fscil.methods.ncm import Ncm
from fscil.methods.toolkit.contrast import self_supervised_contrast
from fscil.models import Backbone
from fscil.training.base_network import OBJECTIVES, BaseNetwork, Objective
from fscil.training.base_training import plain_recipe
from fscil.training.batches import Batch
from fscil.training.build import views_of

SCALE = 32.0  # of all cosines, those of the contrast too
# The paper's weights of contrast and closeness, by data set.
WEIGHTS = {"mini_imagenet": (0.1, 0.5), "cub200": (0.01, 1.5)}
OTHER_WEIGHTS = (0.1, 1.0)
SMALLEST_CROP = 0.25  # share of the image
JITTER = 0.5  # probability


def closeness(features: Tensor, labels: Tensor) -> Tensor:
    """The mean cosine between unit vectors (n, d) of different classes; 0 where all are of one."""
    different = labels[:, None] != labels
    return (features @ features.T * different).sum() / different.sum().clamp_min(1)


@OBJECTIVES.register("closer")
class CloserObjective(Objective):
    """Cross-entropy, contrast, and closeness with a negative sign: the nearer classes are, the smaller the loss."""

    divisible = True

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        super().__init__(recipe, backbone, classes)
        if recipe.views.count < 2:
            raise ConfigError('train.objective = "closer" compares views of an image: set views.count to at least 2.')
        self.weights = WEIGHTS.get(recipe.data.name, OTHER_WEIGHTS)

    def losses(self, network: BaseNetwork, batch: Batch) -> Iterable[Tensor]:
        views = views_of(self.recipe, batch.progress)(batch.pixels, batch.sizes, batch.generator, batch.part)
        images = len(batch.labels)
        labels = batch.labels.to(views.device, non_blocking=True).repeat(len(views))
        features = self.encoded(network.backbone, views, batch).float()
        classified = F.cross_entropy(SCALE * network.head(network.projection(features)), labels)
        unit = F.normalize(features)
        spread, close = self.weights
        yield classified + spread * self_supervised_contrast(unit, images, 1 / SCALE) - close * closeness(unit, labels)


class Closer(Ncm):
    """Keeps means, as the plain nearest mean does; what differs is base training."""

    title = "CLOSER"
    table_order = 150

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """Two views of square crops, coloured at random half of the time; milder where the recipe's own are."""
        plain, given = plain_recipe(config), config.views
        smallest = min(1.0, max(SMALLEST_CROP, given.scale[0]))
        colour = 0.0 if config.data.name == "cub200" else min(given.jitter, JITTER)
        views = replace(plain.views, kind="resized", count=2, scale=(smallest, 1.0), ratio=(1.0, 1.0), jitter=colour)
        return replace(plain, views=views, train=replace(plain.train, objective="closer", compile="off"))
