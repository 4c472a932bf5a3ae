"""Narrow networks train: the shortcut's strided 1x1 convolution against its definition, forward and backward.

With fewer input channels than a vector register holds, oneDNN's own version of it corrupts memory in backward.
"""

import pytest
import torch

from fscil.models import build_backbone


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 9, 16])
def test_gradients_of_the_shortcut(width):
    torch.manual_seed(width)
    backbone = build_backbone("resnet18", width=width).to(memory_format=torch.channels_last)
    shortcut = backbone.layer2[0].downsample[0]
    assert shortcut.weight.shape == (2 * width, width, 1, 1)
    for height in (16, 7):
        images = torch.randn(30, width, height, height).to(memory_format=torch.channels_last).requires_grad_()
        found = shortcut(images)
        pull = torch.randn_like(found)
        shortcut.weight.grad = None
        (found * pull).sum().backward()

        pixels, weight = images.detach()[:, :, ::2, ::2].double(), shortcut.weight.detach()[:, :, 0, 0].double()
        torch.testing.assert_close(found.double(), torch.einsum("oi,nihw->nohw", weight, pixels), rtol=1e-4, atol=1e-4)
        expected = torch.einsum("nohw,nihw->oi", pull.double(), pixels)
        torch.testing.assert_close(shortcut.weight.grad[:, :, 0, 0].double(), expected, rtol=1e-4, atol=1e-3)
        spread = torch.zeros_like(images, dtype=torch.float64)
        spread[:, :, ::2, ::2] = torch.einsum("oi,nohw->nihw", weight, pull.double())
        torch.testing.assert_close(images.grad.double(), spread, rtol=1e-4, atol=1e-4)
