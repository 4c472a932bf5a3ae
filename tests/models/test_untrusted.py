"""What is checked of a network from somebody else before it takes any memory."""

import pytest
import torch

from fscil.errors import ConfigError, StoreError
from fscil.models import build_backbone
from fscil.models.untrusted import require_fitting, require_harmless


def test_options_are_switches_numbers_and_names():
    require_harmless(
        "resnet18", {"stem": "imagenet", "width": 64, "last_relu": False, "rate": 0.5, "pretrained": False}
    )
    for option in ({"weights": "a.pth"}, {"weights": None}, {"pretrained": True}, {"a": "../b"}, {"a": "~"}, {"a": []}):
        with pytest.raises(ConfigError, match="option"):
            require_harmless("resnet18", option)
    for number in (float("nan"), float("inf"), 2**40, -(2**40)):
        with pytest.raises(ConfigError, match="neither"):
            require_harmless("resnet18", {"width": number})


def test_an_image_that_takes_too_much_memory_is_an_error_before_it_does():
    """The largest tensor of this network is that after its first convolution: 64 channels of every pixel."""
    weights = build_backbone("resnet18", width=64).state_dict()
    for size, fits in ((512, True), (724, True), (725, False), (2048, False)):
        assert (64 * size * size <= 2**25) == fits
        if fits:
            require_fitting(lambda: build_backbone("resnet18", width=64), weights, size, "it")
        else:
            with pytest.raises(StoreError, match="for a single layer"):
                require_fitting(lambda: build_backbone("resnet18", width=64), weights, size, "it")


def test_a_network_of_absurd_width_is_never_built():
    weights = {"conv1.weight": torch.zeros(64, 3, 3, 3)}
    with pytest.raises(StoreError, match="another architecture"):
        require_fitting(lambda: build_backbone("resnet18", width=2**20), weights, 32, "it")
