"""Backbones of other packages: built by name, with statistics of their own, folded only where that is right."""

import doctest

import pytest
import torch
from torch import nn

from fscil.errors import ConfigError
from fscil.models import BACKBONES, Backbone, build, build_backbone, folded, native_statistics

STATISTICS = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


class Crossed(nn.Module):
    """Calls its children in another order than that of their definition."""

    def __init__(self):
        super().__init__()
        self.second = nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


@pytest.fixture
def mine():
    @BACKBONES.register("mine")
    def build_mine(depth=1):
        layers = [nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)] * depth
        return Backbone(4, crossed=Crossed(), rest=nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()))

    build_mine.statistics = STATISTICS
    yield "mine"
    BACKBONES.unregister("mine")


def test_a_registered_backbone_is_built_by_name(mine):
    assert build_backbone(mine, depth=2)(torch.zeros(2, 3, 5, 5)).shape == (2, 4)
    with pytest.raises(ConfigError, match=r'mine has no option "width"\..*Known: depth, weights'):
        build_backbone(mine, width=3)
    with pytest.raises(ConfigError, match=r'no backbone named "mime"\. Did you mean "mine"'):
        build_backbone("mime")


def test_its_statistics_are_its_own(mine):
    assert native_statistics(mine) == STATISTICS
    assert native_statistics("resnet20") is None
    assert native_statistics("resnet18") is not None


def test_its_weights_are_read_from_a_file(mine, tmp_path):
    torch.manual_seed(0)
    first = build_backbone(mine)
    torch.save(first.state_dict(), tmp_path / "weights.pth")
    again = build_backbone(mine, weights=tmp_path / "weights.pth")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())


def test_folding_does_not_change_what_it_computes(mine):
    torch.manual_seed(0)
    network = build_backbone(mine)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    images = torch.randn(2, 3, 5, 5)
    with torch.inference_mode():
        torch.testing.assert_close(folded(network)(images), network.eval()(images))


def test_the_examples_are_true():
    failed, tried = doctest.testmod(build)
    assert (failed, tried > 0) == (0, True)
