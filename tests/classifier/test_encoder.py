"""One path from a photo to its feature, whoever asks: decode, preprocess, and the network with BatchNorm folded in."""

import pytest
import torch
from PIL import Image
from torch import nn

from fscil.classifier import StoredClassifier
from fscil.classifier.encoder import EncoderConfig
from fscil.errors import BadImageError, StoreError
from helpers import NAMES, picture

NEW = [picture(9, seed) for seed in range(3)]
# The tiny network hardly distinguishes its classes; tests/classifier/test_doubts.py is about that warning.
pytestmark = pytest.mark.filterwarnings("ignore:.*can hardly be distinguished")


@pytest.fixture
def by_torch(monkeypatch):
    """Whose passes can be counted, and weights changed."""
    monkeypatch.setenv("FSCIL_ENGINE", "torch")


@pytest.fixture
def passes(by_torch, classifier):
    """How many photos at a time went through the backbone as it was trained, and through the folded network."""
    counts = {"backbone": [], "folded": []}
    encoder = classifier.encoder
    for name, network in (("folded", encoder.network), ("backbone", encoder.backbone)):
        network.register_forward_hook(lambda module, inputs, output, name=name: counts[name].append(len(inputs[0])))
    return counts


def test_no_batch_norm_is_left_behind_a_convolution(classifier):
    kinds = [type(part) for part in classifier.encoder.network.modules()]
    assert nn.BatchNorm2d not in kinds
    assert nn.BatchNorm2d in [type(part) for part in classifier.encoder.backbone.modules()]


def test_everything_goes_through_the_folded_network(by_torch, classifier, passes, images, held_out):
    classifier.enroll("new", NEW)
    classifier.predict(NEW[0])
    list(classifier.stream(NEW * 7))
    classifier.calibrate(held_out)
    classifier.check(images)
    photos = 3 + 1 + 21 + 4 * len(NAMES) + 6 * len(NAMES)
    assert (passes["backbone"], sum(passes["folded"])) == ([], photos)
    assert max(passes["folded"]) <= 16  # so that the first answers come soon


def test_every_way_gives_the_same_feature(classifier, tmp_path):
    """Read and encoded by hand as the service does, enrolled, asked for, and after a round trip to the disk."""
    encoder = classifier.encoder
    Image.fromarray(NEW[0]).save(tmp_path / "a.png")
    (expected,) = encoder.encode([encoder.read(tmp_path / "a.png")])
    kept, loaded = encoder.read_to_keep(tmp_path / "a.png")
    assert torch.equal(encoder.encode([kept])[0], expected)
    assert torch.equal(classifier.features(tmp_path / "a.png")[0], expected)
    (photo,) = classifier.photos(tmp_path / "a.png")
    assert torch.equal(photo.feature, expected)
    assert (photo.digest, photo.thumbnail) == (loaded.digest, loaded.thumbnail)
    classifier.save(tmp_path / "m.fscil")
    with StoredClassifier.open(tmp_path / "m.fscil") as stored:
        stored.enroll("new", tmp_path / "a.png")
        assert torch.equal(stored.classifier.gallery.photos("new")[0].feature, expected)


def test_a_feature_that_is_not_finite_is_an_error_of_its_photo(by_torch, classifier):
    encoder = classifier.encoder
    with torch.no_grad():
        for weight in encoder.network.parameters():
            weight.fill_(torch.inf)
    (found,) = encoder.photos([NEW[0]])
    assert isinstance(found, BadImageError)
    assert "not finite" in str(found)


def test_a_config_comes_back_from_its_dict(classifier):
    config = classifier.encoder.config
    assert EncoderConfig.from_dict(config.to_dict()) == config


def test_weights_of_another_architecture_are_refused(classifier):
    encoder = classifier.encoder
    wider = EncoderConfig("resnet20", {"width": 4}, encoder.config.resize, encoder.config.preprocess)
    with pytest.raises(StoreError, match=r"^here is of another architecture"):
        type(encoder).load(wider, encoder.backbone.state_dict(), encoder.device, "here")
