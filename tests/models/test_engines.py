"""onnxruntime computes the features that torch does, and is used where it can be."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.data.images import Resize
from fscil.errors import ConfigError
from fscil.models import Backbone, build_backbone, folded
from fscil.models.engines import TOLERANCE, OnnxNetwork, chosen_engine
from fscil.preprocess import Preprocess

CPU = torch.device("cpu")
NETWORKS = {
    "resnet18": {"width": 8, "stem": "imagenet"},
    "resnet10": {"width": 8, "last_relu": False},
    "resnet20": {},
    "efficientnet_lite0": {"pretrained": False},
}


@pytest.fixture(autouse=True)
def packages():
    pytest.importorskip("onnxruntime", reason='needs pip install "fscil[onnxruntime]"')
    pytest.importorskip("onnx", reason='needs pip install "fscil[onnxruntime]"')


def images(count, size=33, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def network(name, seed=0):
    """With BatchNorm statistics that are not those of a new network."""
    torch.manual_seed(seed)
    built = build_backbone(name, **NETWORKS[name])
    with torch.no_grad():
        for _ in range(3):
            built.train()(images(8, seed=seed))
    return built.eval()


def encoder(engine, backbone=None, size=32):
    config = EncoderConfig("resnet20", {}, Resize(size), Preprocess(size))
    return PhotoEncoder(config, backbone or network("resnet20"), CPU, engine)


@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_those_of_the_network_as_it_was_trained(name):
    backbone = network(name)
    found = OnnxNetwork(folded(backbone), 33)(images(5))
    with torch.inference_mode():
        expected = backbone(images(5))
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()
    assert found.abs().max() > 0


def test_a_photo_has_the_same_bits_in_any_batch_and_with_any_number_of_threads():
    backbone, many = network("efficientnet_lite0"), images(9)
    one = OnnxNetwork(folded(backbone), 33)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        other = OnnxNetwork(folded(backbone), 33)
    finally:
        torch.set_num_threads(threads)
    expected = torch.cat([one(image[None]) for image in many])
    assert one(many).equal(expected)
    assert other(many).equal(expected)


def test_both_engines_of_an_encoder_agree_and_say_which_they_are():
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, (40, 50, 3), np.uint8) for _ in range(7)]
    backbone = network("resnet20")
    one, other = encoder("onnxruntime", backbone), encoder("torch", backbone)
    assert (one.engine, other.engine, encoder("auto", backbone).engine) == ("onnxruntime", "torch", "onnxruntime")
    torch.testing.assert_close(one.features(photos), other.features(photos), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_copies_and_pickles_encode_alike(engine):
    photo = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    first = encoder(engine)
    expected = first.features([photo])
    for again in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):  # noqa: S301
        assert again.engine == engine
        assert again.features([photo]).equal(expected)


class Picky(nn.Module):
    """Computes something else while it is traced, as a network that branches on its values would."""

    def forward(self, x):
        return x.mean((2, 3)) + torch.jit.is_tracing()


class Untraceable(nn.Module):
    def forward(self, x):
        if torch.jit.is_tracing():
            raise RuntimeError("not to be traced")
        return x.mean((2, 3))


@pytest.mark.parametrize("kind", [Picky, Untraceable])
def test_a_network_that_cannot_be_converted_runs_in_torch(kind):
    backbone = Backbone(3, network=kind())
    photo = np.full((40, 40, 3), 200, np.uint8)
    chosen = encoder("auto", backbone)
    assert chosen.engine == "torch"
    assert chosen.features([photo]).equal(encoder("torch", backbone).features([photo]))
    with pytest.raises(ConfigError, match=r"Use the engine torch\.$"):
        encoder("onnxruntime", backbone).features([photo])


def test_without_the_packages_torch_is_used_and_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert chosen_engine("auto", CPU) == "torch"
    with pytest.raises(ConfigError, match=r'needs onnxruntime\. Run: pip install .*\[onnxruntime\]"$'):
        chosen_engine("onnxruntime", CPU)


def test_the_environment_chooses_and_an_argument_overrides_it(monkeypatch):
    monkeypatch.setenv("FSCIL_ENGINE", "torch")
    assert (chosen_engine(None, CPU), chosen_engine("onnxruntime", CPU)) == ("torch", "onnxruntime")
    monkeypatch.setenv("FSCIL_ENGINE", "onnxrutime")
    with pytest.raises(ConfigError, match=r'no engine "onnxrutime".*onnxruntime.*Known: auto, torch, onnxruntime'):
        chosen_engine(None, CPU)


def test_other_devices_run_torch():
    assert chosen_engine("auto", torch.device("meta")) == "torch"
    with pytest.raises(ConfigError, match=r"runs on the CPU, not on meta"):
        chosen_engine("onnxruntime", torch.device("meta"))
