"""Training in sessions: where new classes start, what moves, and whose rate and number of steps count."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from naive import BASE, DATA, PROTOCOL, session
from torch import nn
from torch.nn import functional as F

from fscil.data.images import ArrayPixels, Images
from fscil.experiments.sessions import evaluation_images
from fscil.features import FeatureCache
from fscil.gallery import class_means
from fscil.methods import METHODS, topic
from fscil.methods.toolkit.session_training import SessionTrainingMethod
from fscil.models import Backbone, CosineHead, build_backbone, last_block
from fscil.training.base_training import TrainedNetwork, train_base_network
from fscil.training.build import preprocess_of
from helpers import CONTEXT, SIZE, base_trained_method, small_config, trained_method

TRAINED = [name for name, kind in METHODS.items() if issubclass(kind, SessionTrainingMethod)]


def test_all_that_train_on_images_are_covered():
    assert {"finetune", "icarl", "eeil", "lucir", "topic"} <= set(TRAINED)


def pixel_images(counts, seed):
    """Images of classes 0, 1, …: a random pattern for each class, and noise."""
    labels, random = np.repeat(np.arange(len(counts)), counts), np.random.default_rng(seed)
    patterns = np.random.default_rng(0).normal(0, 25, (len(counts), SIZE, SIZE, 3))
    pixels = 128 + patterns[labels] + random.normal(0, 50, (len(labels), SIZE, SIZE, 3))
    return Images.of(ArrayPixels(pixels.clip(0, 255).astype(np.uint8)), labels)


def on_pixels(name, base, *assignments):
    """A method whose features are the pixels, behind a ReLU if its recipe has one, and a classifier trained on them."""
    config = small_config(*assignments)
    recipe = METHODS[name].base_recipe(config)
    last = nn.ReLU() if recipe.model.last_relu else nn.Identity()
    backbone = Backbone(3 * SIZE**2, flatten=nn.Flatten(), last=last)
    head = CosineHead(backbone.feature_dim, len(base.counts))
    features = FeatureCache(backbone, preprocess_of(recipe), CONTEXT.device, quiet=True)(base)
    optimizer = torch.optim.Adam(head.parameters(), 0.003)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(16 * head(features), torch.from_numpy(base.labels)).backward()
        optimizer.step()
    return METHODS[name](config, TrainedNetwork(backbone, head), CONTEXT)


@pytest.mark.parametrize("name", TRAINED)
def test_new_classes_take_few_base_images_before_they_are_trained(name, monkeypatch):
    """Means of features that are never negative would be nearer to base images than their own class."""
    monkeypatch.setattr(topic, "NODES", 10)
    torch.manual_seed(0)
    base, test = pixel_images([10] * 20, 1), pixel_images([10] * 20, 2)
    method = on_pixels(name, base, "incremental.steps=0")
    method.fit_base(base, (5,))

    def right():
        return (method.network.scores(test).argmax(1).numpy() == test.labels).mean()

    before = right()
    assert before > 0.9
    method.learn(pixel_images([0] * 20 + [5] * 20, 3))
    assert before - right() < 0.05


def test_means_as_they_are_take_them_all():
    """Or the test above would prove nothing."""
    torch.manual_seed(0)
    base, test = pixel_images([10] * 20, 1), pixel_images([10] * 20, 2)
    network, new = on_pixels("finetune", base).network, pixel_images([0] * 20 + [5] * 20, 3)
    means = class_means(F.normalize(network.features(new)), torch.from_numpy(new.labels - 20), 20)
    network.set_class_vectors(torch.cat([network.head.weight.detach(), means]))
    assert (network.scores(test).argmax(1).numpy() == test.labels).mean() < 0.05


@pytest.mark.parametrize("name", ["finetune", "eeil", "topic", "lucir"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_base_accuracy_is_kept_when_new_classes_start_on_trained_networks(name, seed):
    """Tiny networks, which share much between classes."""
    settings = ("train.epochs=25", "train.lr=0.1", "model.width=4", "incremental.steps=0", f"train.seed={seed}")
    method = trained_method(name, small_config(*settings), BASE, (2,))
    test = evaluation_images(DATA, PROTOCOL, 0)

    def right():
        return (method.network.scores(test).argmax(1).numpy() == test.labels).mean()

    before = right()
    method.learn(session(1))
    assert before > 0.6
    assert right() > 0.75 * before


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("trainable", ["auto", "all", "last_block", "head"])
def test_a_session_moves_what_is_trainable_and_nothing_else(name, trainable):
    settings = ("train.epochs=1", "incremental.steps=2", "incremental.lr=0.1", f"incremental.trainable={trainable}")
    method = trained_method(name, small_config(*settings), BASE, (2,))
    before = method.state()
    method.learn(session(1))
    after = method.state()
    weights = [key for key in before if key.startswith("backbone.") and before[key].is_floating_point()]
    moved = {key for key in weights if not torch.equal(before[key], after[key])}
    parts = {"backbone.conv1", "backbone.layer2.0", "backbone.layer4.0", "backbone.layer4.1"}
    touched = {part for part in parts for key in moved if key.startswith(part + ".")}
    wanted = trainable if trainable != "auto" else METHODS[name].trainable
    assert touched == {"all": parts, "last_block": {"backbone.layer4.1"}, "head": set()}[wanted]
    assert not [key for key in moved if "running" in key]
    assert all(parameter.requires_grad for parameter in method.network.backbone.parameters())


def test_only_fine_tuning_moves_everything():
    assert {name for name in TRAINED if METHODS[name].trainable == "all"} == {"finetune"}


def test_a_session_of_the_last_block_alone_is_the_default_of_the_others():
    assert {METHODS[name].trainable for name in TRAINED if name != "finetune"} == {"last_block"}


def test_the_last_block_is_a_residual_block_and_what_follows_it():
    resnet = build_backbone("resnet18", width=2)
    assert [id(each) for each in last_block(resnet)] == [id(each) for each in resnet.layer4[-1].parameters()]
    efficient = build_backbone("efficientnet_lite0", pretrained=False)
    names = {id(value): name for name, value in efficient.named_parameters()}
    found = {names[id(each)].split(".")[0] for each in last_block(efficient)}
    assert found == {"_blocks", "_conv_head", "_bn1"}
    blocks = {names[id(each)].split(".")[1] for each in last_block(efficient) if "_blocks" in names[id(each)]}
    assert blocks == {str(len(efficient._blocks) - 1)}


@pytest.mark.parametrize("name", TRAINED)
def test_rate_and_steps_are_the_methods_own_unless_given(name):
    kind = METHODS[name]
    own = base_trained_method(name, small_config("train.epochs=0", "incremental.lr=none"), BASE)
    assert (own.lr, own.steps) == (kind.session_lr, kind.session_steps)
    given = base_trained_method(name, small_config("train.epochs=0", "incremental.lr=0.3", "incremental.steps=7"), BASE)
    assert (given.lr, given.steps) == (0.3, 7)


@pytest.mark.parametrize("name", TRAINED)
def test_a_network_that_began_pretrained_takes_a_tenth_of_the_rate(name):
    scratch = small_config("train.epochs=0")
    recipe = METHODS[name].base_recipe(scratch)
    config = replace(scratch, model=replace(scratch.model, init="pretrained"))
    network = train_base_network(recipe, BASE, CONTEXT)
    assert METHODS[name](config, network, CONTEXT).lr == pytest.approx(0.1 * METHODS[name].session_lr)
    given = replace(config, incremental=replace(config.incremental, lr=0.3))
    assert METHODS[name](given, network, CONTEXT).lr == 0.3


def test_the_moments_of_base_features_are_saved_and_counted():
    method = trained_method("finetune", small_config("train.epochs=1"), BASE, (2,))
    dim = method.network.backbone.feature_dim
    assert method.memory().floats == dim + dim**2
    other = base_trained_method("finetune", small_config("train.epochs=0"), BASE)
    other.load_state(method.state())
    assert torch.equal(other.base.mean, method.base.mean)
    assert torch.equal(other.base.covariance, method.base.covariance)
    assert method.base.mean.abs().sum() > 0
