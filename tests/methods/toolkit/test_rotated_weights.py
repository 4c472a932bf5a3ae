"""Weights in a rotated basis: the basis against numpy's SVD, importance by differences, training of rotated weights."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fscil.methods.toolkit.rotated_weights import (
    RotatedLayer,
    freeze,
    frozen_directions,
    importances,
    input_bases,
    input_columns,
    rotatable,
)
from fscil.models import Backbone, build_backbone
from fscil.models.resnet import StridedProjection


def conv_backbone():
    torch.manual_seed(0)
    parts = {
        "first": nn.Conv2d(3, 4, 3, padding=1),
        "relu": nn.ReLU(),
        "second": StridedProjection(4, 5, 2),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "last": nn.Linear(5, 6),
    }
    return Backbone(6, **parts).double()


def some_images(count=4, seed=0):
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 3, stride=2), torch.randn(2, 3, 7, 7)),
        (nn.Conv2d(3, 4, 3, dilation=2), torch.randn(2, 3, 7, 7)),
        (StridedProjection(3, 4, 2), torch.randn(2, 3, 6, 6)),
        (nn.Linear(5, 4), torch.randn(2, 7, 5)),
    ],
)
def test_the_columns_times_the_weights_are_the_outputs(layer, inputs):
    """Each row holds what the weights of one output are multiplied with."""
    outputs = input_columns(layer, inputs) @ layer.weight.flatten(1).T
    outputs = outputs if layer.bias is None else outputs + layer.bias
    found = layer(inputs)
    expected = found if isinstance(layer, nn.Linear) else found.permute(0, 2, 3, 1)
    torch.testing.assert_close(outputs, expected.reshape(outputs.shape), atol=1e-5, rtol=1e-4)


def test_the_basis_is_the_singular_vectors_of_the_inputs():
    backbone, images = conv_backbone(), some_images()
    layers = rotatable(backbone, list(backbone.parameters()))
    assert list(layers) == ["first", "second", "last"]
    bases = input_bases(backbone, layers, images.split(3))
    columns = input_columns(backbone.first, images).numpy()
    _, sizes, vectors = np.linalg.svd(columns, full_matrices=False)
    found = bases["first"].double()
    torch.testing.assert_close(found.T @ found, torch.eye(27, dtype=torch.float64), atol=1e-5, rtol=0)
    # Directions of equal size may mix, and a sign is free: the projections' sizes are compared.
    np.testing.assert_allclose(np.linalg.norm(columns @ found.numpy(), axis=0), sizes, rtol=1e-4)
    np.testing.assert_allclose(np.abs(vectors[0] @ found[:, 0].numpy()), 1, atol=1e-4)


def test_layers_with_groups_and_layers_that_are_not_trained_are_left_out():
    efficient = build_backbone("efficientnet_lite0", pretrained=False)
    found = rotatable(efficient, list(efficient.parameters()))
    assert found
    assert all(layer.groups == 1 for layer in found.values())
    backbone = conv_backbone()
    assert list(rotatable(backbone, [backbone.last.weight, backbone.first.bias])) == ["last"]


def rotated_layers(backbone):
    layers = rotatable(backbone, list(backbone.parameters()))
    bases = input_bases(backbone, layers, [some_images()])
    return {
        name: RotatedLayer(layer, bases[name].double(), torch.zeros(layer.weight.flatten(1).shape, dtype=torch.bool))
        for name, layer in layers.items()
    }


def test_importance_is_the_size_of_the_gradient_at_each_rotated_weight():
    """Each rotated weight is moved by itself, and the losses are compared."""
    backbone = conv_backbone()
    layers, labels = rotated_layers(backbone), torch.tensor([0, 1, 2, 3])
    images = some_images(seed=1)

    def loss(part):
        return F.cross_entropy(backbone(images[part]), labels[part])

    parts = [slice(0, 2), slice(2, 4)]
    found = importances(layers, (loss(part) for part in parts))["last"]
    weight, basis, step = backbone.last.weight, layers["last"].basis, 1e-5
    for output, direction in [(0, 0), (3, 1), (5, 4)]:
        expected = 0.0
        for part in parts:
            around = []
            for sign in (1, -1):
                with torch.no_grad():
                    weight[output] += sign * step * basis[:, direction]
                    around.append(loss(part).item())
                    weight[output] -= sign * step * basis[:, direction]
            expected += abs(around[0] - around[1]) / (2 * step)
        assert float(found[output, direction]) == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_the_largest_share_of_all_layers_together_is_frozen_and_stays_so():
    layers = rotated_layers(conv_backbone())
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        before = {name: part.frozen for name, part in layers.items()}
        importance = {name: torch.rand(part.frozen.shape, generator=generator) for name, part in layers.items()}
        freeze(layers, importance, 0.1)
        everything = sorted((v for value in importance.values() for v in value.flatten().tolist()), reverse=True)
        smallest = everything[round(0.1 * len(everything)) - 1]
        for name, part in layers.items():
            assert torch.equal(part.frozen, before[name] | (importance[name] >= smallest))


def test_training_is_that_of_the_rotated_weights_without_the_frozen_ones():
    """SGD with momentum on the rotated weights themselves, the frozen ones of which have no gradient."""
    backbone, images, labels = conv_backbone(), some_images(seed=1), torch.tensor([0, 1, 2, 3])
    layers = rotated_layers(backbone)
    random = torch.Generator().manual_seed(3)
    for part in layers.values():
        part.frozen = torch.rand(part.frozen.shape, generator=random) < 0.5
    start = {name: part.rotated(part.layer.weight.detach()) for name, part in layers.items()}
    rotated = {name: value.clone().requires_grad_() for name, value in start.items()}
    frozen = {name: part.frozen for name, part in layers.items()}

    reference = torch.optim.SGD(rotated.values(), 0.1, 0.9)
    plain = conv_backbone()
    for _ in range(3):
        weights = {}
        for name, value in rotated.items():
            free = torch.where(frozen[name], value.detach(), value)
            weights[f"{name}.weight"] = (free @ layers[name].basis.T).view_as(layers[name].layer.weight)
        reference.zero_grad()
        F.cross_entropy(torch.func.functional_call(plain, weights, (images,)), labels).backward()
        reference.step()

    optimizer = torch.optim.SGD([part.layer.weight for part in layers.values()], 0.1, 0.9)
    with frozen_directions(layers):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(backbone(images), labels).backward()
            optimizer.step()
    for name, part in layers.items():
        found = part.rotated(part.layer.weight.detach())
        torch.testing.assert_close(found, rotated[name].detach(), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found[part.frozen], start[name][part.frozen], atol=1e-7, rtol=0)
        assert (found - start[name])[~part.frozen].abs().max() > 1e-4


def test_afterwards_gradients_are_whole_again():
    backbone = conv_backbone()
    layers = rotated_layers(backbone)
    for part in layers.values():
        part.frozen = torch.ones_like(part.frozen)
    with frozen_directions(layers):
        backbone(some_images()).sum().backward()
    assert backbone.last.weight.grad.abs().max() < 1e-9
    backbone.zero_grad()
    backbone(some_images()).sum().backward()
    assert backbone.last.weight.grad.abs().max() > 1e-3
