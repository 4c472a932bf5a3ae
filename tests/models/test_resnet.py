import numpy as np
import pytest
import torch
from torch import nn

from fscil.errors import ConfigError
from fscil.models import build_backbone, parameter_count


def batch_norm_keys(name):
    return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


def torchvision_resnet18_keys():
    """From the rule: four stages of two blocks; a stage that changes shape has a projection in its first block."""
    keys = ["conv1.weight", *batch_norm_keys("bn1")]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            for convolution in (1, 2):
                keys += [f"layer{stage}.{block}.conv{convolution}.weight"]
                keys += batch_norm_keys(f"layer{stage}.{block}.bn{convolution}")
            if stage > 1 and block == 0:
                keys += [f"layer{stage}.0.downsample.0.weight", *batch_norm_keys(f"layer{stage}.0.downsample.1")]
    return keys


@pytest.mark.parametrize("stem", ["cifar", "half", "imagenet"])
def test_resnet18_has_torchvisions_names(stem):
    assert list(build_backbone("resnet18", stem=stem, width=8).state_dict()) == torchvision_resnet18_keys()


def test_resnet18_has_torchvisions_shapes():
    backbone = build_backbone("resnet18", stem="imagenet")
    shapes = {key: tuple(tensor.shape) for key, tensor in backbone.state_dict().items()}
    assert parameter_count(backbone) == 11_176_512  # torchvision's 11,689,512 less 513,000 of its classifier
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.1.conv2.weight"] == (64, 64, 3, 3)
    assert shapes["layer3.0.conv1.weight"] == (256, 128, 3, 3)
    assert shapes["layer4.0.downsample.0.weight"] == (512, 256, 1, 1)


def test_cifar_stem_has_a_3x3_first_convolution_only():
    cifar, imagenet = build_backbone("resnet18"), build_backbone("resnet18", stem="imagenet")
    assert parameter_count(imagenet) - parameter_count(cifar) == 64 * 3 * (7 * 7 - 3 * 3)


def test_resnet10_is_resnet18_without_the_second_block_of_each_stage():
    deep, shallow = (build_backbone(name, stem="half", width=8) for name in ("resnet18", "resnet10"))
    kept = [key for key in deep.state_dict() if ".1." not in key or "downsample" in key]
    assert list(shallow.state_dict()) == kept
    assert shallow.feature_dim == deep.feature_dim == 64


def test_resnet20_has_a_quarter_of_a_million_parameters():
    backbone = build_backbone("resnet20")
    assert backbone.feature_dim == 64
    convolutions = 3 * 16 * 9 + 6 * 16 * 16 * 9 + 16 * 32 * 9 + 5 * 32 * 32 * 9 + 32 * 64 * 9 + 5 * 64 * 64 * 9
    shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64)
    assert parameter_count(backbone) == convolutions + shortcuts + norms == 271_824


@pytest.mark.parametrize(
    ("stem", "size", "stride"),
    [
        ("cifar", 32, 8),
        ("cifar", 84, 8),
        ("half", 32, 16),
        ("half", 24, 16),
        ("imagenet", 224, 32),
        ("imagenet", 84, 32),
    ],
)
def test_last_map_has_the_resolution_of_its_stem(stem, size, stride):
    backbone = build_backbone("resnet18", stem=stem, width=4).eval()
    maps = []
    backbone.layer4.register_forward_hook(lambda module, inputs, output: maps.append(output))
    features = backbone(torch.randn(2, 3, size, size))
    cells = -(-size // stride)
    assert maps[0].shape == (2, 32, cells, cells)
    torch.testing.assert_close(features, maps[0].mean((2, 3)))
    assert (maps[0] >= 0).all()  # the feature is taken behind the last ReLU


def naive_convolution(x, weight, stride, padding):
    """x (c, h, w), weight (o, c, k, k) -> (o, h', w'), pixel by pixel."""
    kernel = weight.shape[-1]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    height, width = ((side - kernel) // stride + 1 for side in x.shape[1:])
    result = np.empty((len(weight), height, width))
    for row in range(height):
        for column in range(width):
            top, left = row * stride, column * stride
            window = x[:, top : top + kernel, left : left + kernel]
            result[:, row, column] = (weight * window).sum((1, 2, 3))
    return result


def naive_norm(x, state, name):
    mean, variance, scale, shift = (
        state[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


@pytest.mark.parametrize(("stage", "block", "stride"), [("layer1", 0, 1), ("layer2", 0, 2)])
def test_basic_block_computes_what_the_paper_draws(stage, block, stride):
    torch.manual_seed(0)
    module = getattr(build_backbone("resnet20", width=4), stage)[block].eval()
    for key, tensor in module.state_dict().items():
        if tensor.ndim == 1:  # BatchNorm with statistics that are not the identity
            tensor.copy_(torch.rand_like(tensor) + 0.5)
        assert "downsample" not in key or stride == 2
    state = {key: tensor.double().numpy() for key, tensor in module.state_dict().items()}
    x = torch.randn(2, 4, 7, 7)

    expected = []
    for image in x.double().numpy():
        y = np.maximum(naive_norm(naive_convolution(image, state["conv1.weight"], stride, 1), state, "bn1"), 0)
        y = naive_norm(naive_convolution(y, state["conv2.weight"], 1, 1), state, "bn2")
        if stride == 2:
            image = naive_norm(naive_convolution(image, state["downsample.0.weight"], 2, 0), state, "downsample.1")
        expected.append(np.maximum(y + image, 0))
    np.testing.assert_allclose(module(x).detach().numpy(), np.stack(expected), atol=1e-4)


def test_convolutions_start_with_the_spread_of_their_fan_out():
    torch.manual_seed(0)
    weight = build_backbone("resnet18").layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "resnet10", "resnet20", "efficientnet_lite0"])
def test_convolutions_may_start_as_torch_has_them(name):
    """Uniform within one over the root of the fan-in, which for a convolution is inputs times area."""
    options = {"pretrained": False} if name == "efficientnet_lite0" else {}
    torch.manual_seed(0)
    backbone = build_backbone(name, initialisation="torch", **options)
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d):
            bound = part.weight[0].numel() ** -0.5
            assert part.weight.abs().max() <= bound
            if part.weight.numel() > 1000:
                assert part.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_an_unknown_initialisation_is_an_error():
    with pytest.raises(ConfigError, match='"kaiming" or "torch", not "zeros"'):
        build_backbone("resnet18", width=2, initialisation="zeros")


def test_impossible_stem_and_width_are_errors():
    with pytest.raises(ConfigError, match='"cifar", "half" or "imagenet", not "celeba"'):
        build_backbone("resnet18", stem="celeba")
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        build_backbone("resnet20", width=0)


@pytest.mark.parametrize("name", ["resnet18", "resnet10", "resnet20"])
def test_without_the_last_relu_the_last_map_has_both_signs(name):
    """The weights are the same, and so is everything before it."""
    plain = build_backbone(name, width=4).eval()
    signed = build_backbone(name, width=4, last_relu=False).eval()
    signed.load_state_dict(plain.state_dict())
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = [torch.nn.Sequential(*list(network)[:-2])(images) for network in (plain, signed)]
    assert (maps[1] < 0).any()
    torch.testing.assert_close(maps[0], maps[1].relu())
