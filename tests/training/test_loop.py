"""The loop: its schedule, its updates, what it logs, what it selects, its estimate of the time, and what goes wrong."""

import math

import numpy as np
import pytest
import torch
from small_training import BASE, EPOCHS, Training, config, numbered, same
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fscil.config import TrainConfig
from fscil.errors import TrainingError
from fscil.training.batches import Batches
from fscil.training.loop import Trainer, learning_rate
from fscil.training.run_folder import Run
from helpers import CONTEXT, part, small_config


def test_step_schedule():
    settings = TrainConfig(lr=0.1, epochs=5, drops=(2, 4), gamma=0.1)
    rates = [learning_rate(settings, step, 3) for step in range(15)]
    assert rates == pytest.approx([0.1] * 6 + [0.01] * 6 + [0.001] * 3)


def test_one_cycle_schedule():
    settings = TrainConfig(lr=2.0, epochs=4, schedule="onecycle")
    rates = [learning_rate(settings, step, 2) for step in range(8)]
    # Up to the full rate in the first quarter, then down half a cosine wave to nothing.
    falling = [1 + math.cos(math.pi * place / 6) for place in range(1, 7)]
    assert rates == pytest.approx([1.0, 2.0, *falling], abs=1e-12)


@pytest.mark.parametrize("schedule", ["step", "onecycle"])
def test_the_scheduled_rate_is_the_one_used(schedule):
    """Plain SGD on a loss whose gradient is 1: each step moves the weight by the rate."""
    settings = TrainConfig(
        lr=0.5, epochs=4, batch=8, schedule=schedule, drops=(2,), momentum=0.0, nesterov=True, weight_decay=0.0
    )
    network = nn.Linear(1, 1, bias=False).double()
    places = []

    def step(batch):
        places.append(network.weight.item())
        yield network.weight.sum()

    Trainer(settings, CONTEXT).train(network, BASE, step)
    moved = -np.diff([*places, network.weight.item()])
    assert moved == pytest.approx([learning_rate(settings, number, 3) for number in range(12)])


def test_sgd_with_nesterov_momentum_and_weight_decay():
    """Two parameters against the update rule written out."""
    settings = TrainConfig(lr=0.1, epochs=3, batch=8, drops=(), momentum=0.9, nesterov=True, weight_decay=0.01)
    network = nn.Linear(2, 1, bias=False).double()
    weight = network.weight.detach().numpy().copy().ravel()
    target = np.array([1.0, -2.0])

    def step(batch):
        for one in (0, 1):  # in two parts, which add up
            yield 0.5 * (network.weight[:, one] - target[one]).square().sum()

    Trainer(settings, CONTEXT).train(network, BASE, step)
    velocity = np.zeros(2)
    for _ in range(9):
        gradient = weight - target + 0.01 * weight
        velocity = 0.9 * velocity + gradient
        weight = weight - 0.1 * (gradient + 0.9 * velocity)
    np.testing.assert_allclose(network.weight.detach().numpy().ravel(), weight, rtol=1e-12)


def test_a_part_is_passed_backward_before_the_next_is_computed():
    network, seen = nn.Linear(1, 1, bias=False), []

    def step(batch):
        for factor in (1.0, 2.0):
            seen.append(None if network.weight.grad is None else network.weight.grad.item())
            yield factor * network.weight.sum()

    Trainer(TrainConfig(epochs=1, batch=26, lr=0.1), CONTEXT).train(network, BASE, step)
    assert seen == [None, 1.0]
    assert network.weight.grad.item() == 3.0


def test_each_step_gets_its_batch():
    network, settings, seen = nn.Linear(1, 1), TrainConfig(epochs=3, batch=8, lr=0.01, seed=2), []

    def step(batch):
        seen.append((batch.pixels[:, 0, 0, 0].tolist(), batch.progress))
        yield network.weight.sum()

    Trainer(settings, CONTEXT).train(network, numbered(26), step)
    batches = Batches(numbered(26), settings, CONTEXT.device)
    expected = [batches.of_step(number) for number in range(9)]
    assert seen == [(batch.pixels[:, 0, 0, 0].tolist(), batch.progress) for batch in expected]


# Metrics


class Waits(TorchDispatchMode):
    """Within, the steps are recorded in which the host reads a number from a tensor, and so waits for the device."""

    def __init__(self):
        super().__init__()
        self.step, self.steps = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            self.steps.append(self.step)
        return func(*args, **(kwargs or {}))


def test_the_host_waits_for_the_device_in_every_tenth_step_only():
    network, waits = nn.Linear(1, 1), Waits()

    def step(batch):
        waits.step += 1
        return [network.weight.sum()]

    with waits:
        Trainer(TrainConfig(epochs=1, batch=2, lr=0.01), CONTEXT).train(network, numbered(50), step)
    assert sorted(set(waits.steps)) == [10, 20, 25]  # and in the last of 25 steps


def test_logged_losses_are_means_since_the_last_line(run):
    training = Training(run=run)
    losses = []
    step = training.step

    def remember(batch):
        parts = []
        for loss in step(batch):
            parts.append(loss.item())
            yield loss
        losses.append(sum(parts))

    training.step = remember
    training.train()
    expected = [sum(losses[first : first + 3]) / 3 for first in (0, 3, 6)]
    assert [line["loss"] for line in run.metrics()] == pytest.approx(expected, rel=1e-5)


def test_tensorboard_has_every_line(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Training(run=run).train()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in run.metrics()]
    assert len(found) == EPOCHS


# What goes wrong


def test_one_image_is_refused():
    with pytest.raises(TrainingError, match="at least two images, there are 1"):
        Training().train(images=BASE.select([0]))


def test_nan_loss_without_a_run_names_no_checkpoint():
    training = Training()
    step = training.step
    training.step = lambda batch: (loss * math.nan for loss in step(batch))
    with pytest.raises(TrainingError) as caught:
        training.train()
    assert "the loss became nan by step 3" in str(caught.value)
    assert "checkpoint" not in str(caught.value)


def test_weights_that_the_last_step_broke_are_no_result():
    """Its loss was fine; what it did to the weights would show only in a step that never comes."""
    network = nn.Linear(1, 1, bias=False)
    settings = TrainConfig(epochs=1, batch=26, lr=1e38, weight_decay=0.0)
    with pytest.raises(TrainingError, match="the weights became infinite by step 1"):
        Trainer(settings, CONTEXT).train(network, BASE, lambda batch: [1e10 * network.weight.sum()])


def test_a_step_without_memory_is_named():
    def step(batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    with pytest.raises(TrainingError, match=r"smaller train\.batch"):
        Trainer(small_config().train, CONTEXT).train(nn.Linear(1, 1), part([4, 4], 0), step)


# Selection by validation


def test_the_best_scored_state_is_the_result(run):
    training = Training(run=run)
    states, scores = [], iter([0.2, 0.7, 0.7])

    def validate():
        states.append(training.state())
        return next(scores)

    final = training.train(validate=validate)
    assert len(states) == EPOCHS
    assert same(final, states[1]), "of equals, the first"
    assert [line["validation"] for line in run.metrics() if "validation" in line] == [0.2, 0.7, 0.7]


# The estimate


def test_an_estimate_leaves_the_network_as_it_was(uninterrupted):
    training = Training()
    before = training.state()
    seconds = training.trainer.estimate(training.network, BASE, training.step)
    assert seconds > 0
    assert same(training.state(), before)
    assert all(parameter.grad is None for parameter in training.network.parameters())
    assert same(training.train(), uninterrupted)


def test_an_estimate_is_not_made_with_one_class_only():
    """Images sorted by class would give a batch without mixtures, which is far too cheap."""
    images = part([40, 40], 0)
    images = images.select(np.argsort(images.labels, kind="stable"))
    training, seen = Training(), []

    def step(batch):
        seen.append(set(batch.labels.tolist()))
        return training.step(batch)

    training.trainer.estimate(training.network, images, step)
    assert all(labels == {0, 1} for labels in seen)


@pytest.mark.parametrize("seconds", [0.001, 0.005, 1.0])
def test_an_estimate_is_the_time_of_all_steps(monkeypatch, seconds):
    """The clock is moved by the step alone: so many seconds per image, twice as many at the end of training.

    The first step of a shape takes half a second more, which is no part of the others.
    """
    now, shapes = 0.0, set()
    monkeypatch.setattr("time.perf_counter", lambda: now)
    network = nn.Linear(1, 1)

    def step(batch):
        nonlocal now
        count = len(batch.labels)
        now += seconds * count * (1 + batch.progress)
        if seconds < 0.1:
            now += 0.5 * ((count, batch.progress) not in shapes)
            shapes.add((count, batch.progress))
        yield network.weight.sum()

    for epochs in (1, 4):
        trainer = Trainer(TrainConfig(epochs=epochs, batch=40, lr=0.01), CONTEXT)
        found = trainer.estimate(network, numbered(100), step)  # 2 steps of 40 images in an epoch
        assert found == pytest.approx(epochs * 2 * 40 * seconds * 1.5)


@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_statistics_may_be_frozen(frozen):
    """Those of images; the BatchNorm of a projection is new and must learn them. Weights are trained either way."""
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 14 * 14, 3), nn.BatchNorm1d(3)
    )
    before = {name: value.clone() for name, value in network.state_dict().items()}

    def step(batch):
        scores = network(batch.pixels.permute(0, 3, 1, 2).float() / 255)
        yield nn.functional.cross_entropy(scores, batch.labels)

    settings = TrainConfig(epochs=1, batch=6, lr=0.1, freeze_batchnorm=frozen)
    Trainer(settings, CONTEXT).train(network, part([6, 6, 6], 0), step)
    after = network.state_dict()
    assert torch.equal(after["1.running_mean"], before["1.running_mean"]) == frozen
    assert not torch.equal(after["4.running_mean"], before["4.running_mean"])
    assert not torch.equal(after["1.weight"], before["1.weight"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_forward_pass_has_the_precision_of_the_settings(precision):
    """On every device: a product is rounded to bfloat16 or not; weights, gradients and momentum stay float32."""
    network, seen = nn.Linear(8, 3, bias=False), []

    def step(batch):
        scores = network(torch.ones(2, 8))
        seen.append(scores.dtype)
        yield scores.float().sum()

    Trainer(TrainConfig(epochs=1, batch=13, lr=0.1, precision=precision), CONTEXT).train(network, BASE, step)
    assert seen == [torch.bfloat16 if precision == "bf16" else torch.float32] * 2
    assert network.weight.dtype == network.weight.grad.dtype == torch.float32


def test_a_whole_training_in_bf16_is_near_the_one_in_fp32(tmp_path):
    losses = []
    for kind in ("fp32", "bf16"):
        run = Run.create(tmp_path / kind, config(), {})
        training = Training(f"train.precision={kind}", "train.lr=0.001", run=run)
        assert all(value.isfinite().all() for value in training.train().values())
        losses.append([line["loss"] for line in Run.open(tmp_path / kind).metrics()])
    exact, coarse = losses
    assert exact != coarse
    assert coarse == pytest.approx(exact, rel=0.2)  # eight mantissa bits, a network of width 2
