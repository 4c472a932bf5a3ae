"""WaRP (Kim et al., ICLR 2023): sessions train the weights that base classes do not need, in a rotated weight space.

The weights of a layer are expressed in the directions of its inputs on base images, where few of them carry the
knowledge of the base classes. Those with the largest gradients are frozen, and the others learn the new classes, whose
own most important weights are frozen in turn. A class is the mean of its features.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.data.images import Images, Ints
from fscil.gallery import class_means
from fscil.methods.base import Memory
from fscil.methods.toolkit.growing_network import check_numbers
from fscil.methods.toolkit.rotated_weights import (
    RotatedLayer,
    freeze,
    frozen_directions,
    importances,
    input_bases,
    rotatable,
)
from fscil.methods.toolkit.session_training import SessionTrainingMethod
from fscil.models.state import of_prefix
from fscil.training.build import preprocess_of

KEPT = 0.1  # share of the weights that a session freezes
BASIS_IMAGES, BASIS_BATCH = 2560, 128  # images from which the bases are computed, at most
BASE_BATCH, NEW_BATCH = 60, 1  # images of each gradient in the importance of base and new classes


class Warp(SessionTrainingMethod):
    """Keeps the mean of each class, as the classifier, and the basis of each layer that is trained."""

    title = "WaRP"
    table_order = 135
    session_lr = 0.1  # the authors' program: 0.01
    session_steps = 100  # there 30
    weight_decay = 0.0  # it would move frozen weights
    augmented = False
    layers: dict[str, RotatedLayer]

    def trained_backbone(self) -> list[nn.Parameter]:
        """The weights of convolutions and linear layers among them; BatchNorm stays as it is."""
        parts = rotatable(self.network.backbone, super().trained_backbone())
        wanted = {id(layer.weight) for layer in parts.values()}
        return [parameter for parameter in self.network.backbone.parameters() if id(parameter) in wanted]

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.set_class_vectors(self._means(base, 0))
        parts = rotatable(self.network.backbone, self.trained_backbone())
        random = np.random.default_rng(self.config.train.seed)
        some = random.permutation(len(base))[:BASIS_IMAGES]
        bases = input_bases(self.network.backbone, parts, self._batches(base, some, BASIS_BATCH))
        self.layers = {name: _rotated(layer, bases[name]) for name, layer in parts.items()}
        self._freeze(base, BASE_BATCH)

    def learn(self, new: Images) -> None:
        old = self.network.head.weight.detach().cpu()
        check_numbers(new, len(old))
        self.network.set_class_vectors(torch.cat([old, self._means(new, len(old))]))

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.network(views), labels)

        with frozen_directions(self.layers):
            self.train(new, loss, seed=len(old), heads=[])
        self._freeze(new, NEW_BATCH)

    def _means(self, images: Images, first: int) -> Tensor:
        """(classes, d), of images whose classes are numbered from first."""
        labels = torch.from_numpy(images.labels - first)
        return class_means(self.network.features(images), labels, len(images.counts))

    def _freeze(self, images: Images, batch: int) -> None:
        """The weights that matter most for these images."""
        if not self.layers:  # incremental.trainable = "head"
            return
        labels = torch.split(torch.from_numpy(images.labels).to(self.context.device), batch)
        views = self._batches(images, np.arange(len(images)), batch)
        losses = (F.cross_entropy(self.network(one), two) for one, two in zip(views, labels, strict=True))
        freeze(self.layers, importances(self.layers, losses), KEPT)

    def _batches(self, images: Images, rows: Ints, size: int) -> Iterator[Tensor]:
        """(n, 3, h, w): these images as they are in the test."""
        preprocess = preprocess_of(self.network.recipe)
        for chosen in np.split(rows, range(size, len(rows), size)):
            pixels, sizes = map(torch.from_numpy, images.batch(chosen))
            yield preprocess(pixels.to(self.context.device), sizes).contiguous(memory_format=torch.channels_last)

    def memory(self) -> Memory:
        bases = sum(part.basis.numel() for part in self.layers.values())
        return Memory(floats=self.network.head.weight.numel() + bases)

    def own_state(self) -> dict[str, Tensor]:
        """basis.*, frozen.*, by the layer's name"""
        bases = {f"basis.{name}": part.basis.cpu() for name, part in self.layers.items()}
        return bases | {f"frozen.{name}": part.frozen.cpu() for name, part in self.layers.items()}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        parts = rotatable(self.network.backbone, self.trained_backbone())
        bases, frozen = of_prefix("basis", state), of_prefix("frozen", state)
        self.layers = {name: _rotated(layer, bases[name], frozen[name]) for name, layer in parts.items()}


def _rotated(layer: nn.Conv2d | nn.Linear, basis: Tensor, frozen: Tensor | None = None) -> RotatedLayer:
    device, shape = layer.weight.device, layer.weight.flatten(1).shape
    frozen = torch.zeros(shape, dtype=torch.bool) if frozen is None else frozen
    return RotatedLayer(layer, basis.to(device), frozen.to(device))
