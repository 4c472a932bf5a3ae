"""A folded network has no BatchNorm behind a convolution any more, and says the same."""

import pytest
import torch
from torch import nn

from fscil.models import Backbone, build_backbone, folded

NETWORKS = {
    "resnet18": {"width": 3},
    "resnet18 for photos": {"stem": "imagenet", "width": 4},
    "resnet10 half": {"stem": "half", "width": 4},
    "resnet20": {"width": 5},
    "efficientnet_lite0": {"pretrained": False},
}


def lived_in(network):
    """With statistics and weights of BatchNorm as if it had seen data."""
    torch.manual_seed(1)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.3)
    return network


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_says_the_same(name):
    torch.manual_seed(0)
    network = lived_in(build_backbone(name.split()[0], **NETWORKS[name])).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    quick = folded(network)
    images = torch.randn(3, 3, 40, 36)
    with torch.inference_mode():
        found = quick(images)
    assert network.training
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert not any(isinstance(part, nn.BatchNorm2d) for part in quick.modules())
    with torch.inference_mode():
        expected = network.eval()(images)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_networks_of_others_are_left_alone():
    inner = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    quick = folded(Backbone(4, network=inner))
    assert isinstance(quick.network[1], nn.BatchNorm2d)
    assert not quick.training
