"""Trials of base training: ALICE's angular penalty plus a term that shall make the two-covariance model truer.

    python benchmarks/two_covariance_objectives.py cifar100_cpu --set train.objective=contrast:0.5:0.1 --novel 15 ...

All arguments are those of tune.py; base training images only. The objective is term:weight or, for the contrast,
term:weight:temperature; TERMS has the terms. None clearly won (results/readout.md), so that none is part of fscil.
"""

import sys
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
import tune
from torch import Tensor

from fscil.config import Config
from fscil.losses import LOSSES
from fscil.methods.toolkit.contrast import supervised_contrast
from fscil.models import Backbone
from fscil.training.base_network import OBJECTIVES, BaseNetwork, Objective
from fscil.training.batches import Batch
from fscil.training.build import views_of

SMALL = 1e-4  # added to features before the square root, whose slope is infinite at 0
SETTING = "train.objective="


def prepared(features: Tensor) -> Tensor:
    """As fscil.gallery.two_covariance.prepare, of (n, d) features that are not negative."""
    return F.normalize((features + SMALL).sqrt())


def residuals(vectors: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(m, d) deviations from the class's mean in the batch, enlarged so that their covariance is W, the one within
    classes, and (m,) labels; of the m of n images that have another of their class."""
    counts = torch.bincount(labels)
    sums = vectors.new_zeros(len(counts), vectors.shape[1]).index_add(0, labels, vectors)
    own = counts[labels].to(vectors.dtype)
    apart = (vectors - sums[labels] / own[:, None]) * (own / (own - 1).clamp_min(1)).sqrt()[:, None]
    return apart[own > 1], labels[own > 1]


def scatter(features: Tensor, labels: Tensor) -> Tensor:
    """log tr W: but for constants, twice the negative log-likelihood per dimension of Gaussians around the classes'
    means whose covariance is the same multiple of the identity."""
    found, _ = residuals(prepared(features), labels)
    return found.square().sum(1).mean().log()


def shape(features: Tensor, labels: Tensor) -> Tensor:
    """Least where W is a multiple of the identity and deviations are equally long in all classes, however long.

    log (d tr W^2 / (tr W)^2), and the log of the deviations' mean fourth power over their squared mean square.
    Deviations in different classes are independent: their squared products have the expectation tr W^2.
    """
    found, of = residuals(prepared(features), labels)
    squares = found.square().sum(1)
    different = of[:, None] != of
    products = ((found @ found.T).square() * different).sum() / different.sum()
    trace = squares.mean()
    return (found.shape[1] * products / trace**2).log() + (squares.square().mean() / trace**2).log()


def contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrast of the features at unit length."""
    return supervised_contrast(F.normalize(features), labels, temperature)


# (n, d) features, (n,) labels and, of the contrast, a temperature -> the term
TERMS: dict[str, Callable[..., Tensor]] = {"scatter": scatter, "shape": shape, "contrast": contrast}


class WithTerm(Objective):
    """The step of base_training.base_step, and weight times a term; all views of a batch at once."""

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        super().__init__(recipe, backbone, classes)
        name, *numbers = recipe.train.objective.split(":")
        self.term = TERMS[name]
        self.weight, *self.temperature = map(float, numbers)

    def losses(self, network: BaseNetwork, batch: Batch) -> Iterable[Tensor]:
        loss = self.recipe.loss
        margin = loss.margin * min(1.0, batch.progress / loss.margin_warmup) if loss.margin_warmup else loss.margin
        views = views_of(self.recipe, batch.progress)(batch.pixels, batch.sizes, batch.generator)
        labels = batch.labels.to(views.device).repeat(len(views))
        features = network.backbone(views.flatten(0, 1).contiguous(memory_format=torch.channels_last))
        scores = network.head(network.projection(features)).float()
        with torch.autocast(views.device.type, enabled=False):
            added = self.term(features.float(), labels, *self.temperature)
        yield LOSSES[loss.kind](scores, labels, loss.scale, margin) + self.weight * added


if __name__ == "__main__":
    for argument in sys.argv:
        if argument.startswith(SETTING):
            OBJECTIVES.register(argument.removeprefix(SETTING))(WithTerm)
    tune.main()
