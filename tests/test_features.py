"""Each image passes the backbone once, and the cached features are those of the backbone."""

import numpy as np
import pytest
import torch

from fscil.data.images import ArrayPixels, Images
from fscil.errors import ConfigError
from fscil.experiments.sessions import walk_all
from fscil.features import Encoder, FeatureCache
from fscil.models import build_backbone
from fscil.preprocess import Preprocess, SeveralCrops
from fscil.protocol import Protocol
from fscil.training.build import base_images, evaluation_crops_of
from helpers import SIZE, part, small_config, tiny_dataset, untrained_method

CPU = torch.device("cpu")


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return build_backbone("resnet18", width=2)


@pytest.fixture
def rows_passed(backbone):
    """How many images each call of the backbone got."""
    seen = []
    backbone.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    return seen


def cache(backbone, batch=256):
    return FeatureCache(backbone, Preprocess(SIZE), CPU, batch, quiet=True)


def direct(backbone, image):
    """One image on its own, normalised by hand."""
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    ready = ((image / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
    with torch.no_grad():
        return backbone.eval()(torch.from_numpy(ready))[0].numpy()


def test_features_are_those_of_each_image_alone(backbone):
    images = part([4, 3], 0)
    found = cache(backbone, batch=3)(images)
    assert found.dtype == torch.float32
    assert found.shape == (7, backbone.feature_dim)
    for feature, image in zip(found, images.pixels.array, strict=True):
        np.testing.assert_allclose(feature.numpy(), direct(backbone, image), rtol=1e-4, atol=1e-5)
    assert (found > 0).any()


def test_what_was_first_asked_for_without_gradients_can_be_added_to(backbone):
    images, features = part([4, 3], 0), cache(backbone)
    with torch.inference_mode():
        features(images.select([0, 5]))
    found = features(images)
    np.testing.assert_array_equal(found.numpy(), cache(backbone)(images).numpy())
    assert not found.is_inference()


def test_an_image_passes_once_however_it_is_asked_for(backbone, rows_passed):
    images = part([6, 6], 0)
    features = cache(backbone, batch=5)
    some = features(images.select([7, 2, 2, 9]))
    assert sum(rows_passed) == 3
    everything = features(images)
    assert sum(rows_passed) == 12
    again = features(images.select([7, 2, 2, 9]).relabel([0, 1]))
    assert sum(rows_passed) == 12
    assert max(rows_passed) == 5
    assert torch.equal(again, everything[[7, 2, 2, 9]])
    assert torch.equal(again, some)


def test_images_of_two_stores_are_not_confused(backbone, rows_passed):
    train, test = part([3], 0), part([3], 100)
    features = cache(backbone)
    assert not torch.equal(features(train), features(test))
    assert sum(rows_passed) == 6


def test_after_clear_everything_is_new(backbone, rows_passed):
    images = part([3], 0)
    features = cache(backbone)
    before = features(images)
    with torch.no_grad():
        backbone.conv1.weight.mul_(-1)
    assert torch.equal(features(images), before)
    features.clear()
    assert not torch.equal(features(images), before)
    assert sum(rows_passed) == 6


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_backbone_is_restored(backbone, training):
    backbone.train(training)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    cache(backbone)(part([3], 0))
    assert all(module.training == training for module in backbone.modules())
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())


def test_the_mode_is_restored_after_a_failure_too(backbone):
    class Broken(ArrayPixels):
        def read(self, rows):
            raise OSError("the disk is gone")

    backbone.train()
    images = Images.of(Broken(np.zeros((2, SIZE, SIZE, 3), np.uint8)), [0, 0])
    with pytest.raises(OSError, match="gone"):
        cache(backbone)(images)
    assert backbone.training


def test_features_can_be_used_in_training(backbone):
    """They must be plain tensors: those made in inference mode cannot be used where gradients are wanted."""
    features = cache(backbone)(part([3], 0))
    weight = torch.ones(backbone.feature_dim, requires_grad=True)
    (features @ weight).sum().backward()
    assert torch.allclose(weight.grad, features.sum(0))


def test_an_encoder_keeps_the_weights_it_began_with_until_the_change_is_announced(backbone):
    encoder = Encoder(backbone, CPU)
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    before = encoder(images)
    np.testing.assert_allclose(before.numpy(), backbone.eval()(images).detach().numpy(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        backbone.conv1.weight.mul_(-1)
    assert torch.equal(encoder(images), before)
    encoder.backbone_changed()
    changed = backbone(images).detach()
    assert not torch.allclose(changed, before, atol=1e-3)
    np.testing.assert_allclose(encoder(images).numpy(), changed.numpy(), rtol=1e-4, atol=1e-5)


def test_all_sessions_both_shots_and_ten_draws_take_one_pass():
    dataset = tiny_dataset(train=8)
    method = untrained_method("alice", small_config(), 6)
    protocol = Protocol(6, 2, 3, shots=2, order=(5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6))
    passed = []
    method.backbone.register_forward_hook(lambda module, inputs, output: passed.append(len(inputs[0])))
    method.fit_base(base_images(dataset, protocol), (2, 1))
    walks = list(walk_all(method, dataset, protocol, (2, 1), range(10)))
    assert len(walks) == 20
    labels = dataset.train.labels
    used = {int(row) for row in np.flatnonzero(labels < 6)}
    for draw in range(10):
        for session in (1, 2, 3):
            used |= set(protocol.samples(labels, session, draw).tolist())
    assert sum(passed) == len(used) + len(dataset.test)
    assert len(used) < len(labels)


def test_the_feature_of_several_crops_is_their_mean(backbone):
    """Ten crops by slicing: of 20 pixels the centre and the corners of 16, each with its mirror image."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (3, 20, 20, 3), np.uint8)
    images = Images.of(ArrayPixels(pixels), np.zeros(3, np.int64))
    places = [(2, 2), (0, 0), (0, 4), (4, 0), (4, 4)]
    for count, used in ((2, places[:1]), (10, places)):
        found = FeatureCache(backbone, SeveralCrops(Preprocess(16, 20), count), CPU, quiet=True)(images)
        for row, image in enumerate(pixels):
            crops = [image[down : down + 16, across : across + 16] for down, across in used]
            each = [direct(backbone, one) for crop in crops for one in (crop, crop[:, ::-1])]
            np.testing.assert_allclose(found[row].numpy(), np.mean(each, 0), atol=1e-5, rtol=1e-4)


def test_corners_need_a_margin():
    with pytest.raises(ConfigError, match=r"test\.crops = 10 .* Set test\.resize"):
        evaluation_crops_of(small_config("test.crops=10"))
    assert evaluation_crops_of(small_config("test.crops=2")).count == 2
