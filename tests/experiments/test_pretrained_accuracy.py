"""The accuracy of a network as base training finds it, compared with a loop over images."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from fscil.experiments.pretrained_accuracy import pretrained_accuracy
from fscil.features import FeatureCache
from fscil.runtime.files import save_tensors
from fscil.training.build import backbone_of, base_images, preprocess_of, protocol_of
from fscil.training.context import Context
from helpers import small_config, tiny_dataset

CPU = Context.on("cpu", quiet=True)


@pytest.fixture
def weights(tmp_path):
    """A file of weights to start from."""
    save_tensors(tmp_path / "start.safetensors", backbone_of(small_config("train.seed=5")).state_dict())
    return tmp_path / "start.safetensors"


def test_it_is_the_nearest_class_mean_of_the_network_before_training(weights):
    config, dataset = small_config(f"model.weights={weights}"), tiny_dataset()
    protocol = protocol_of(config, dataset)
    encode = FeatureCache(backbone_of(small_config("train.seed=5")), preprocess_of(config), CPU.device, quiet=True)
    base = base_images(dataset, protocol)
    features, labels = encode(base), torch.from_numpy(base.labels)
    means = [features[labels == label].mean(0) for label in range(protocol.base_classes)]
    asked = dataset.test.of_classes(protocol.seen(0)).relabel(protocol.seen(0))
    right = 0
    for feature, label in zip(encode(asked), asked.labels, strict=True):
        cosines = [float(cosine_similarity(feature, mean, dim=0)) for mean in means]
        right += cosines.index(max(cosines)) == label
    assert pretrained_accuracy(config, dataset, protocol, CPU) == pytest.approx(right / len(asked))


def test_there_is_none_without_pretrained_weights_or_without_training(weights):
    dataset = tiny_dataset()
    for config in (small_config(), small_config(f"model.weights={weights}", "train.epochs=0")):
        assert pretrained_accuracy(config, dataset, protocol_of(config, dataset), CPU) is None
