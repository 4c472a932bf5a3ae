"""Weights in a rotated basis, in which few of them carry what a layer does (WaRP; Kim et al., ICLR 2023).

The basis of a layer is made of the directions of its inputs. A weight that is important there is frozen: training goes
on in the original weights, whose gradients lose their part along the frozen directions. As the basis is orthonormal,
that is the same as training the rotated weights that are not frozen.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from fscil.models import Backbone
from fscil.models.resnet import StridedProjection


@dataclass(eq=False)
class RotatedLayer:
    """basis: (k, k), orthonormal columns, by falling variance of the layer's inputs. frozen: (outputs, k), bool."""

    layer: nn.Conv2d | nn.Linear
    basis: Tensor
    frozen: Tensor

    def rotated(self, weight: Tensor) -> Tensor:
        """Of the weight's shape, or a gradient's -> (outputs, k) in the basis."""
        return weight.flatten(1) @ self.basis

    def allowed(self, gradient: Tensor) -> Tensor:
        """The gradient without its part along frozen directions, of the same shape."""
        free = self.rotated(gradient).masked_fill(self.frozen, 0) @ self.basis.T
        return free.view_as(gradient)


def rotatable(backbone: Backbone, parameters: Sequence[Tensor]) -> dict[str, nn.Conv2d | nn.Linear]:
    """The layers whose weights are among the parameters, by name: convolutions without groups, and linear layers."""
    wanted = {id(parameter) for parameter in parameters}
    return {
        name: part
        for name, part in backbone.named_modules()
        if (isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1))
        and id(part.weight) in wanted
    }


def input_columns(layer: nn.Conv2d | nn.Linear, inputs: Tensor) -> Tensor:
    """The layer's inputs -> (n, k), one row for each time that its weights are applied."""
    if isinstance(layer, nn.Linear):
        return inputs.reshape(-1, inputs.shape[-1])
    if isinstance(layer, StridedProjection):
        inputs = inputs[:, :, :: layer.every, :: layer.every]
    assert not isinstance(layer.padding, str)
    columns = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return columns.transpose(1, 2).reshape(-1, columns.shape[1])


@torch.no_grad()
def input_bases(
    backbone: Backbone, layers: dict[str, nn.Conv2d | nn.Linear], batches: Iterable[Tensor]
) -> dict[str, Tensor]:
    """(k, k) for each layer: the singular vectors of its inputs, over batches (n, 3, h, w) of normalised images."""
    sums: dict[str, Tensor] = {}

    def add(name: str, layer: nn.Conv2d | nn.Linear, inputs: Tensor) -> None:
        columns = input_columns(layer, inputs).double()
        product = columns.T @ columns
        sums[name] = sums[name] + product if name in sums else product

    hooks = [
        layer.register_forward_pre_hook(lambda _, given, name=name, layer=layer: add(name, layer, given[0]))
        for name, layer in layers.items()
    ]
    try:
        for batch in batches:
            backbone(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.linalg.eigh(total).eigenvectors.flip(1).float() for name, total in sums.items()}


def importances(layers: dict[str, RotatedLayer], losses: Iterable[Tensor]) -> dict[str, Tensor]:
    """(outputs, k) for each layer: the sum over the losses of the gradient's size at each rotated weight."""
    found = {name: torch.zeros_like(part.frozen, dtype=part.basis.dtype) for name, part in layers.items()}
    weights = [part.layer.weight for part in layers.values()]
    for loss in losses:
        gradients = torch.autograd.grad(loss, weights)
        for (name, part), gradient in zip(layers.items(), gradients, strict=True):
            found[name] += part.rotated(gradient).abs()
    return found


def freeze(layers: dict[str, RotatedLayer], importance: dict[str, Tensor], share: float) -> None:
    """Freeze the most important share of all rotated weights, over all layers, beside those that are frozen."""
    everything = torch.cat([value.flatten() for value in importance.values()])
    count = max(1, round(share * len(everything)))
    threshold = everything.topk(count).values[-1]
    for name, part in layers.items():
        part.frozen = part.frozen | (importance[name] >= threshold)


@contextmanager
def frozen_directions(layers: dict[str, RotatedLayer]) -> Iterator[None]:
    """Within it, gradients of the layers' weights have no part along frozen directions."""
    hooks = [_on_gradient(part.layer.weight, part.allowed) for part in layers.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _on_gradient(weight: Tensor, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    handle: RemovableHandle = weight.register_hook(change)  # type: ignore[no-untyped-call]
    return handle
