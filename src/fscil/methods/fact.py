"""FACT (Zhou et al., CVPR 2022): virtual prototypes keep room for classes to come.

In base training every image has its class and, its class put aside, the nearest virtual prototype as a second one.
Mixtures of two classes, made inside the network, are images of classes to come: they get the nearest virtual prototype
and, that put aside, the nearest class. At test classes are the means of their features, and images and classes are also
compared by how they lie among the virtual prototypes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.gallery import cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.models import Backbone
from fscil.runtime.distributed import gather_rows, share
from fscil.training.base_network import OBJECTIVES, BaseNetwork, Objective
from fscil.training.base_training import PLAIN_SCALE, TrainedNetwork, plain_recipe
from fscil.training.batches import Batch
from fscil.training.build import views_of
from fscil.training.context import Context

SCALE = PLAIN_SCALE  # of the cosines, as in the paper
# Of the three losses beside cross-entropy, by data set.
WEIGHTS = {"cifar100": 0.001}
OTHER_WEIGHT = 0.01
SHARE = 0.1  # of the comparison by virtual prototypes in the scores


def second_loss(logits: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Cross-entropy (n, outputs) of the second target, with the output of the first one put aside."""
    return F.cross_entropy(logits.scatter(1, first[:, None], -torch.inf), second)


def mixing_weight(generator: Generator) -> Tensor:
    """From Beta(1/2, 1/2), the arcsine distribution: the squared sine of a uniform angle."""
    return (torch.rand((), generator=generator) * torch.pi / 2).sin().square()


def halves(backbone: Backbone) -> tuple[list[nn.Module], list[nn.Module]]:
    """The parts up to the middle of its stages (modules of type nn.Sequential), and the others.

    The first are none where there are no stages, so that images themselves are mixed.
    """
    parts = list(backbone)
    stages = [place for place, part in enumerate(parts) if isinstance(part, nn.Sequential)]
    middle = stages[(len(stages) - 1) // 2] + 1 if stages else 0
    return parts[:middle], parts[middle:]


def _passed(parts: Iterable[nn.Module], values: Tensor) -> Tensor:
    for part in parts:
        values = part(values)
    return values


def _of_all(own: Tensor, total: int) -> Tensor:
    """This process's rows -> those of all processes."""
    return gather_rows(own[None], total)[0]


@OBJECTIVES.register("fact")
class FactObjective(Objective):
    """Has as many virtual prototypes as there are classes."""

    divisible = True

    def __init__(self, recipe: Config, backbone: Backbone, classes: int) -> None:
        super().__init__(recipe, backbone, classes)
        self.virtual = nn.Parameter(nn.init.orthogonal_(torch.empty(classes, backbone.feature_dim)))
        self.weight = WEIGHTS.get(recipe.data.name, OTHER_WEIGHT)

    def losses(self, network: BaseNetwork, batch: Batch) -> Iterable[Tensor]:
        one_view = replace(views_of(self.recipe, batch.progress), count=1)
        (view,) = one_view(batch.pixels, batch.sizes, batch.generator, batch.part)
        target = batch.labels.to(view.device, non_blocking=True)
        before, behind = halves(network.backbone)
        hidden = _passed(before, view.contiguous(memory_format=torch.channels_last))
        logits = self._logits(network, _of_all(_passed(behind, hidden), len(target)))
        classified = F.cross_entropy(logits[:, : self.classes], target)
        reserved = second_loss(logits, target, self._nearest_virtual(logits))

        partner = torch.randperm(len(target), generator=batch.generator)
        weight = mixing_weight(batch.generator).to(view.device, non_blocking=True)
        left = (batch.labels != batch.labels[partner]).nonzero().squeeze(1)  # on the host: no waiting for the device
        if not len(left):
            yield classified + self.weight * reserved
            return
        own, count, hidden = share(len(left)), len(left), _of_all(hidden, len(target))
        left, right = (places.to(view.device, non_blocking=True) for places in (left[own], partner[left[own]]))
        mixtures = torch.lerp(hidden[right], hidden[left], weight.to(hidden.dtype))
        mixed = self._logits(network, _of_all(_passed(behind, mixtures), count))
        virtual, nearest = self._nearest_virtual(mixed), mixed[:, : self.classes].detach().argmax(1)
        forecast = F.cross_entropy(mixed, virtual) + second_loss(mixed, virtual, nearest)
        yield classified + self.weight * (reserved + forecast)

    def _logits(self, network: BaseNetwork, features: Tensor) -> Tensor:
        """(n, classes + virtual prototypes)"""
        virtual = F.linear(F.normalize(features.float()), F.normalize(self.virtual))
        return SCALE * torch.cat([network.head(network.projection(features)), virtual], 1)

    def _nearest_virtual(self, logits: Tensor) -> Tensor:
        return self.classes + logits[:, self.classes :].detach().argmax(1)

    def extras(self) -> dict[str, Tensor]:
        return {"virtual": self.virtual}

    @classmethod
    def passes(cls, recipe: Config) -> float:
        """A view, and a mixture, though that passes the second half alone."""
        return 2.0


class Fact(FrozenFeatureMethod):
    """Keeps one mean per class, and the virtual prototypes."""

    title = "FACT"
    table_order = 115
    images_seen_note = "FACT counts a mixture as an image, though it passes half of the network"
    means = torch.empty(0)  # (classes, d)

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.virtual = network.extras["virtual"].cpu()  # (virtual prototypes, d)

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        plain = plain_recipe(config)
        return replace(plain, train=replace(plain.train, objective="fact", compile="off"))

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.means = self.means_of(base, 0)

    def learn(self, new: Images) -> None:
        self.means = torch.cat([self.means, self.means_of(new, len(self.means))])

    def scores(self, images: Images) -> Tensor:
        """Probabilities of the nearest mean, and a share of those of the way over the virtual prototypes."""
        features = self.features(images)
        direct = SCALE * cosine_scores(features, self.means)
        over_virtual = cosine_scores(features, self.virtual) @ cosine_scores(self.virtual, self.means)
        return (1 - SHARE) * direct.softmax(1) + SHARE * over_virtual.softmax(1)

    def memory(self) -> Memory:
        return Memory(floats=self.means.numel() + self.virtual.numel())

    def own_state(self) -> dict[str, Tensor]:
        """means, virtual"""
        return {"means": self.means, "virtual": self.virtual}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.means, self.virtual = state["means"], state["virtual"]
