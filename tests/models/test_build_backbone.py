import copy
import sys

import pytest
import torch

from fscil.errors import ConfigError
from fscil.models import build_backbone, native_statistics

SMALL = {
    "resnet18 cifar": ("resnet18", {"width": 8}),
    "resnet18 imagenet": ("resnet18", {"stem": "imagenet", "width": 8}),
    "resnet10 half": ("resnet10", {"stem": "half", "width": 8}),
    "resnet20": ("resnet20", {}),
    "efficientnet_lite0": ("efficientnet_lite0", {"pretrained": False}),
}
every_backbone = pytest.mark.parametrize(("name", "options"), SMALL.values(), ids=SMALL)


@every_backbone
@pytest.mark.parametrize("size", [(32, 32), (84, 84), (224, 224), (50, 33)], ids=str)
def test_one_feature_vector_per_image_at_every_size(name, options, size):
    backbone = build_backbone(name, **options).eval()
    with torch.inference_mode():
        features = backbone(torch.randn(2, 3, *size))
    assert isinstance(backbone.feature_dim, int)
    assert features.shape == (2, backbone.feature_dim)
    assert features.isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "dimension"),
    [
        ("resnet18", {}, 512),
        ("resnet18", {"width": 16, "stem": "imagenet"}, 128),
        ("resnet20", {}, 64),
        ("resnet20", {"width": 8}, 32),
        ("efficientnet_lite0", {"pretrained": False}, 1280),
    ],
)
def test_feature_dim(name, options, dimension):
    assert build_backbone(name, **options).feature_dim == dimension


@every_backbone
def test_channels_last_gives_the_same_features(name, options):
    torch.manual_seed(0)
    backbone = build_backbone(name, **options).eval()
    images = torch.randn(2, 3, 65, 64)
    with torch.inference_mode():
        expected = backbone(images)
        found = backbone.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@every_backbone
def test_gradient_reaches_every_parameter(name, options):
    torch.manual_seed(0)
    backbone = build_backbone(name, **options)
    backbone(torch.randn(4, 3, 64, 64)).square().sum().backward()
    untouched = [key for key, value in backbone.named_parameters() if value.grad is None or not value.grad.any()]
    assert untouched == []


@every_backbone
def test_the_seed_decides_the_weights(name, options):
    def weights(seed):
        torch.manual_seed(seed)
        return build_backbone(name, **options).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.items())
    assert any(not torch.equal(tensor, other[key]) for key, tensor in first.items())


@every_backbone
def test_a_copy_stands_on_its_own(name, options):
    backbone = build_backbone(name, **options).eval()
    twin = copy.deepcopy(backbone)
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        expected = backbone(images)
        for parameter in backbone.parameters():
            parameter.zero_()
        torch.testing.assert_close(twin(images), expected)
    assert twin.feature_dim == backbone.feature_dim


def test_unknown_backbone_names_the_nearest():
    listed = "Installed: resnet18, resnet10, resnet20, efficientnet_lite0"
    with pytest.raises(ConfigError, match=rf'no backbone named "resnet81"\. Did you mean "resnet18"\? {listed}'):
        build_backbone("resnet81")
    with pytest.raises(ConfigError, match=rf'no backbone named "vgg"\. {listed}'):
        build_backbone("vgg")


def test_unknown_option_names_the_nearest():
    with pytest.raises(
        ConfigError, match=r'resnet18 has no option "widht"\. Did you mean "width"\? Known: stem, width'
    ):
        build_backbone("resnet18", widht=8)
    with pytest.raises(
        ConfigError, match=r'efficientnet_lite0 has no option "stem"\. Known: pretrained, initialisation, weights'
    ):
        build_backbone("efficientnet_lite0", stem="cifar")


def test_native_statistics_undo_the_published_scaling():
    mean, std = (torch.tensor(values) for values in native_statistics("efficientnet_lite0"))
    pixels = torch.tensor([[0.0] * 3, [127.0] * 3, [255.0] * 3])
    torch.testing.assert_close((pixels / 255 - mean) / std, (pixels - 127) / 128)
    assert native_statistics("resnet18") == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert native_statistics("resnet20") is None


def test_timm_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r'pip install .*\[timm\]"$'):
        build_backbone("timm:resnet10t")
    with pytest.raises(ConfigError, match=r'pip install .*\[timm\]"$'):
        native_statistics("timm:resnet10t")


@pytest.mark.parametrize("network", ["resnet10t", "mobilenetv3_small_050"])
def test_timm_networks_become_backbones(network, tmp_path):
    timm = pytest.importorskip("timm", reason='needs pip install "fscil[timm]"', exc_type=ImportError)
    name = f"timm:{network}"
    backbone = build_backbone(name, pretrained=False).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert backbone(images).shape == (2, backbone.feature_dim)
    config = timm.get_pretrained_cfg(network)
    assert native_statistics(name) == (tuple(config.mean), tuple(config.std))

    theirs = timm.create_model(network, pretrained=False)  # with its classifier
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    torch.save(backbone.state_dict(), tmp_path / "ours.pth")
    loaded = build_backbone(name, weights=tmp_path / "theirs.pth").eval()
    with torch.inference_mode():
        torch.testing.assert_close(
            loaded(images), theirs.eval().forward_head(theirs.forward_features(images), pre_logits=True)
        )
        torch.testing.assert_close(build_backbone(name, weights=tmp_path / "ours.pth").eval()(images), backbone(images))


def test_unknown_timm_network_names_the_nearest():
    pytest.importorskip("timm", reason='needs pip install "fscil[timm]"', exc_type=ImportError)
    with pytest.raises(ConfigError, match=r'no network "resnet10tt"\. Did you mean "resnet10t"\?'):
        build_backbone("timm:resnet10tt")
