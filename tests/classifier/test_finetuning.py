"""Training within a number of minutes, stopped and resumed."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscil import Classifier
from fscil.classifier.finetuning import PLANNED_SHARE, largest_limit, limit_per_class, make_plan, train_head
from fscil.classifier.fitting import Training, folder_recipe
from fscil.classifier.folder_network import Comparison
from fscil.errors import StoreError
from fscil.features import FeatureCache
from fscil.losses import LOSSES
from fscil.training.base_training import new_base_network
from fscil.training.build import preprocess_of
from fscil.training.context import Context
from fscil.training.loop import Trainer
from helpers import NAMES, SMALL_NETWORK, ctrl_c_at, part, write_images

CONTEXT = Context.on("cpu", quiet=True)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 1.2))
def test_the_largest_limit_that_keeps_the_share(counts, share):
    found = largest_limit(counts, share)
    assert 1 <= found <= max(counts)

    def kept(limit):
        return sum(min(count, limit) for count in counts)

    assert kept(found) <= share * sum(counts) or found == 1
    assert found == max(counts) or kept(found + 1) > share * sum(counts)


def test_a_limit_per_class():
    base = part([9, 3, 6], 0)
    found = limit_per_class(base, 4)
    assert found.counts == {0: 4, 1: 3, 2: 4}
    assert {*found.rows} <= {*base.rows}
    assert found.rows.tolist() == limit_per_class(base, 4).rows.tolist()
    assert limit_per_class(base, None) is base


@pytest.fixture
def epoch(monkeypatch):
    """Let an epoch seem to take so many seconds."""

    def take(seconds):
        monkeypatch.setattr(Trainer, "estimate", lambda self, *_: seconds * self.settings.epochs)

    return take


@pytest.mark.parametrize(
    ("seconds", "minutes", "epochs", "limit"),
    [
        (10, None, 10, None),
        (10, 100, 10, None),  # never more than the recipe
        (10, 1, 5, None),
        (54, 1, 1, None),
        (108, 1, 1, 5),  # half of an epoch
    ],
)
def test_the_plan_fits_into_the_minutes(epoch, seconds, minutes, epochs, limit):
    epoch(seconds)
    config = folder_recipe(Training(None, from_scratch=True), [*SMALL_NETWORK, "train.epochs=10"])
    base = part([10, 10, 10], 0)
    plan = make_plan(config, base, math.inf if minutes is None else 60 * minutes, CONTEXT)
    assert (plan.config.train.epochs, plan.limit) == (epochs, limit)
    if minutes is not None:
        assert plan.seconds <= 60 * minutes * PLANNED_SHARE
    assert plan.seconds == pytest.approx(seconds * epochs * (1 if limit is None else limit / 10))


def test_minutes_are_announced_and_used(epoch, tmp_path):
    epoch(1200)
    write_images(tmp_path, train=8, test=0, names=NAMES[:3], split=False)
    said = []
    options = {"from_scratch": True, "settings": SMALL_NETWORK, "quiet": True, "say": said.append}
    made = Classifier.fit(tmp_path, minutes=10, **options)
    text = "\n".join(said)
    assert "1 epoch of 9 photos (at most 3 per class), to stay within 10 min" in text
    assert made.made["trained on"] == {"classes": 3, "photos": 9}
    assert [info.photos for info in made.classes()] == [8, 8, 8]


def test_the_head_is_trained_alone_first():
    """The backbone keeps every bit; the loss on its features falls."""
    config = folder_recipe(Training(None, from_scratch=False), SMALL_NETWORK)
    base = part([8, 8, 8], 0)
    network = new_base_network(config, 3, CONTEXT)
    before = {name: value.clone() for name, value in network.backbone.state_dict().items()}
    labels = torch.from_numpy(base.labels)

    def loss():
        features = FeatureCache(network.backbone, preprocess_of(config), CONTEXT.device, quiet=True)(base)
        network.train()
        return LOSSES["softmax"](network.head(network.projection(features))[:, :3], labels, 16.0, 0.0).item()

    first = loss()
    train_head(network, base, config, CONTEXT)
    assert loss() < first / 2
    for name, value in network.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


def finetuned(folder, *settings):
    said = []
    network = [item for item in SMALL_NETWORK if not item.startswith("train.")]
    options = {"settings": [*network, "train.batch=8", *settings], "quiet": True, "say": said.append, "device": "cpu"}
    return Classifier.fit(folder, finetune=True, **options), Classifier.fit(folder, **options), said


def same_network(one, other):
    pairs = zip(one.encoder.backbone.state_dict().values(), other.encoder.backbone.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def test_a_training_that_diverges_leaves_the_network_as_it_was(tmp_path):
    write_images(tmp_path, train=10, test=0, names=NAMES[:3], split=False)
    made, untrained, said = finetuned(tmp_path, "train.epochs=2", "train.lr=1000")
    assert same_network(made, untrained)
    assert any("training diverged" in line and "stays as it was" in line for line in said)


def test_a_network_that_is_no_better_is_not_used(tmp_path):
    """Hardly trained at all: not worth another network, and the held-out photos tell."""
    write_images(tmp_path, train=10, test=0, names=NAMES[:6], split=False)
    made, untrained, said = finetuned(tmp_path, "train.epochs=1", "train.lr=0.000001")
    assert made.made["comparison"]["kept"] is False
    assert made.made["comparison"]["held-out photos"] == 12
    assert same_network(made, untrained)
    assert any("training did not help, the network stays as it was" in line for line in said)
    torch.testing.assert_close(made.gallery.prototypes, untrained.gallery.prototypes)


@pytest.mark.parametrize(
    ("before", "after", "differing", "better"),
    [(10, 14, 4, True), (10, 12, 4, False), (10, 10, 0, False), (9, 8, 1, False)],
)
def test_better_is_more_than_chance(before, after, differing, better):
    found = Comparison(20, before, after, differing)
    assert found.better is better
    assert found.record["kept"] is better
    assert ("the trained network is used" in found.text) is better


def test_a_training_that_was_stopped_goes_on_to_the_same_end(tmp_path):
    """Ctrl-C in the middle, then the same call again: as if it had not been stopped."""
    data = write_images(tmp_path / "data", train=6, test=0, names=NAMES[:4], split=False)
    settings = [*SMALL_NETWORK, "train.epochs=10"]
    options = {"from_scratch": True, "settings": settings, "quiet": True, "device": "cpu"}
    with ctrl_c_at(step=15), pytest.raises(KeyboardInterrupt):
        Classifier.fit(data, work=tmp_path / "work", **options)
    assert (tmp_path / "work" / "checkpoint.safetensors").is_file()
    with pytest.raises(StoreError, match=r"started with other minutes.*delete that folder"):
        Classifier.fit(data, work=tmp_path / "work", minutes=5, **options)

    again = Classifier.fit(data, work=tmp_path / "work", **options)
    assert json.loads((tmp_path / "work" / "run.json").read_text())["finished"]
    straight = Classifier.fit(data, **options)
    for (name, value), other in zip(
        again.encoder.backbone.state_dict().items(), straight.encoder.backbone.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name
    finished = Classifier.fit(data, work=tmp_path / "work", **options)  # killed before the model was written
    np.testing.assert_array_equal(finished.gallery.prototypes.numpy(), again.gallery.prototypes.numpy())

    min((data / "ant").iterdir()).unlink()
    with pytest.raises(StoreError, match="other photos"):
        Classifier.fit(data, work=tmp_path / "work", **options)


def test_minutes_end_a_training_that_takes_longer_than_estimated(epoch, tmp_path):
    """A hundred thousand epochs, each of which seems to take no time."""
    epoch(1e-9)
    write_images(tmp_path, train=8, test=0, names=NAMES[:3], split=False)
    said = []
    settings = [*SMALL_NETWORK, "train.epochs=100000"]
    options = {"settings": settings, "quiet": True, "say": said.append, "device": "cpu"}
    made = Classifier.fit(tmp_path, minutes=0.03, from_scratch=True, **options)
    assert any("training was stopped after" in line and "to stay within 0.03 min" in line for line in said)
    assert 0 < made.made["stopped after epochs"] < 100_000
    assert made.made["settings"]["train.epochs"] == 100_000
    assert [info.photos for info in made.classes()] == [8, 8, 8]


def test_too_few_minutes_to_train_at_all(tmp_path):
    write_images(tmp_path, train=8, test=0, names=NAMES[:3], split=False)
    said = []
    settings = [item for item in SMALL_NETWORK if not item.startswith("train.")]
    made = Classifier.fit(tmp_path, finetune=True, minutes=1e-5, settings=settings, quiet=True, say=said.append)
    assert any("no training: 1e-05 min are too short" in line for line in said)
    assert "trained on" not in made.made
