"""The loop: its schedule, what it leaves behind when it is stopped, and that going on gives the same bits."""

import math
import os
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from fscil.config import TrainConfig
from fscil.data.images import ArrayPixels, Images
from fscil.errors import StoreError, TrainingError
from fscil.methods import Alice
from fscil.training.base_training import validation_split
from fscil.training.loop import Trainer, learning_rate, pick_device
from fscil.training.run_folder import Run
from helpers import SIZE, part, small_config

CPU = torch.device("cpu")
CLASSES = 4
BASE = part([7, 7, 6, 6], 0)  # 26 images: 3 steps of 8 per epoch
EPOCHS = 3
STEPS = 9


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config(*assignments):
    return small_config(f"train.epochs={EPOCHS}", "train.lr=0.05", *assignments)


class Training:
    """A network as ALICE trains it, with a step that a test may disturb."""

    def __init__(self, *assignments, run=None):
        self.config = config(*assignments)
        self.trainer = Trainer(self.config.train, CPU, run, quiet=True)
        method = Alice(self.config, self.trainer)
        self.network = method.network(CLASSES)
        self._step = method.step(self.network, CLASSES)
        self.calls = 0
        self.batches = []

    def fit(self, before=None, validate=None, images=BASE):
        def step(batch):
            self.calls += 1
            self.batches.append(batch)
            if before:
                before(self.calls)
            return self._step(batch)

        self.trainer.fit(self.network, images, step, validate)
        return self.state()

    def state(self):
        return {name: value.clone() for name, value in self.network.state_dict().items()}


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", config(), {})


@pytest.fixture(scope="module")
def uninterrupted():
    torch.set_num_threads(1)
    return Training().fit()


# Rates


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

    Trainer(settings, CPU, quiet=True).fit(network, BASE, step)
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

    Trainer(settings, CPU, quiet=True).fit(network, BASE, step)
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

    Trainer(TrainConfig(epochs=1, batch=26, lr=0.1), CPU, quiet=True).fit(network, BASE, step)
    assert seen == [None, 1.0]
    assert network.weight.grad.item() == 3.0


# Batches


def numbered(count):
    """Images that carry their own number in their first pixel."""
    pixels = np.zeros((count, SIZE, SIZE, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(count)
    return Images.of(ArrayPixels(pixels), np.arange(count) % CLASSES)


def numbers_seen(images, batch, epochs, seed=0):
    seen, draws = [], []
    network = nn.Linear(1, 1)

    def step(batch):
        number = batch.pixels[:, 0, 0, 0].long()
        assert torch.equal(batch.labels, number % CLASSES)
        assert batch.sizes.tolist() == [[SIZE, SIZE]] * len(number)
        draws.append(torch.rand(2, generator=batch.generator).tolist())
        seen.append((number.tolist(), batch.progress))
        yield network.weight.sum()

    settings = TrainConfig(epochs=epochs, batch=batch, seed=seed, lr=0.01)
    Trainer(settings, CPU, quiet=True).fit(network, images, step)
    assert len(set(map(tuple, draws))) == len(seen), "each step has randomness of its own"
    return seen


def test_an_epoch_shows_each_image_at_most_once():
    seen = numbers_seen(numbered(26), batch=8, epochs=6)
    assert [len(numbers) for numbers, _ in seen] == [8] * 18
    epochs = [[number for numbers, _ in seen[3 * e : 3 * e + 3] for number in numbers] for e in range(6)]
    assert all(len(set(epoch)) == 24 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert set().union(*epochs) == set(range(26)), "the two left out must not always be the same"
    assert [progress for _, progress in seen] == pytest.approx([step / 18 for step in range(18)])


def test_fewer_images_than_a_batch_make_one_step():
    seen = numbers_seen(numbered(5), batch=8, epochs=2)
    assert [sorted(numbers) for numbers, _ in seen] == [[0, 1, 2, 3, 4]] * 2


def test_the_order_hangs_on_the_seed():
    first, again, other = (numbers_seen(numbered(26), 8, 1, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_one_image_is_refused():
    with pytest.raises(TrainingError, match="at least two images, there are 1"):
        Training().fit(images=BASE.select([0]))


# The same bits


def test_same_seed_same_bits_other_seed_other_bits(uninterrupted):
    torch.manual_seed(123)
    np.random.seed(5)  # noqa: NPY002 (the global state must not matter)
    assert same(Training().fit(), uninterrupted)
    other = Training("train.seed=1").fit()
    assert not any(torch.equal(other[name], uninterrupted[name]) for name in ("head.weight", "backbone.conv1.weight"))


@pytest.mark.parametrize("stopped_in", [1, 2, 3, 4, 8, 9])
def test_after_ctrl_c_it_goes_on_to_the_same_bits(run, uninterrupted, stopped_in):
    """Steps 1, 2, 4, 8 are in the middle of an epoch, 3 and 9 at its end."""

    def ctrl_c(call):
        if call == stopped_in:
            os.kill(os.getpid(), signal.SIGINT)

    first = Training(run=run)
    with pytest.raises(KeyboardInterrupt):
        first.fit(ctrl_c)
    assert first.calls == stopped_in, "the step was finished, and no other begun"
    assert run.load("checkpoint")[1]["step"] == stopped_in

    second = Training(run=Run.open(run.folder))
    assert same(second.fit(), uninterrupted)
    assert second.calls == STEPS - stopped_in


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_again_and_again(run, uninterrupted, number):
    def stop(call):
        if call == 2:
            os.kill(os.getpid(), number)

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            Training(run=run).fit(stop)
    assert same(Training(run=run).fit(), uninterrupted)


@pytest.mark.parametrize("fails_in", [2, 4, 7])
def test_after_a_crash_it_goes_on_from_the_last_checkpoint(run, uninterrupted, fails_in):
    def crash(call):
        if call == fails_in:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        Training("train.checkpoint_minutes=0", run=run).fit(crash)
    assert run.load("checkpoint")[1]["step"] == fails_in - 1
    second = Training(run=run)
    assert same(second.fit(), uninterrupted)
    assert second.calls == STEPS - fails_in + 1


def test_a_crash_before_the_first_checkpoint_starts_over(run, uninterrupted):
    def crash(call):
        if call == 5:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        Training(run=run).fit(crash)
    assert run.metrics() != []
    assert same(Training(run=run).fit(), uninterrupted)
    steps = [line["step"] for line in run.metrics()]
    assert steps == [3, 6, 9], "what the first attempt logged is forgotten"


def test_metrics_of_a_resumed_run_have_each_step_once(run):
    def crash(call):
        if call == 6:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        Training("train.checkpoint_minutes=0", run=run).fit(crash)
    run.log(step=6, loss=123.0)  # as if the crash had come between the line and the checkpoint
    Training("train.checkpoint_minutes=0", run=run).fit()
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["loss"] < 100 for line in lines)
    rates = [learning_rate(config().train, step, 3) for step in range(STEPS)]
    assert [line["rate"] for line in lines] == pytest.approx(rates)
    assert [line["epoch"] for line in lines] == pytest.approx([step / 3 for step in range(1, 10)])


def test_logged_losses_are_means_since_the_last_line(run):
    training = Training(run=run)
    losses = []
    step = training._step

    def remember(batch):
        parts = []
        for loss in step(batch):
            parts.append(loss.item())
            yield loss
        losses.append(sum(parts))

    training._step = remember
    training.fit()
    expected = [sum(losses[first : first + 3]) / 3 for first in (0, 3, 6)]
    assert [line["loss"] for line in run.metrics()] == pytest.approx(expected, rel=1e-5)


def test_time_before_a_stop_counts(run):
    def ctrl_c(call):
        if call == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(ctrl_c)
    tensors, about = run.load("checkpoint")
    assert 0 < about["seconds"] < 1000
    run.save("checkpoint", tensors, {**about, "seconds": 1000.0})
    second = Training(run=run)
    second.fit()
    assert 1000 < second.trainer.seconds < 2000


# Stopping


def test_signals_are_ours_only_while_training(run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during = []
    Training().fit(lambda call: during.append(signal.getsignal(signal.SIGINT)))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert all(handler not in before for handler in during)
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(lambda call: os.kill(os.getpid(), signal.SIGINT))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_ctrl_c_does_not_wait_for_the_step(run):
    survived = []

    def twice(call):
        os.kill(os.getpid(), signal.SIGINT)
        survived.append("first")
        os.kill(os.getpid(), signal.SIGINT)
        survived.append("second")

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(twice)
    assert survived == ["first"]
    assert not run.has("checkpoint")


def test_ctrl_c_during_validation_is_not_lost(run):
    """It comes too late for this step's checkpoint, so the next step must write one."""

    def validate():
        os.kill(os.getpid(), signal.SIGINT)
        return 0.5

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(validate=validate)
    assert run.load("checkpoint")[1]["step"] == 4


def test_training_works_outside_the_main_thread(uninterrupted):
    found = []
    thread = threading.Thread(target=lambda: found.append(Training().fit()))
    thread.start()
    thread.join()
    assert same(found[0], uninterrupted)


# What goes wrong


def test_divergence_is_named_and_costs_no_checkpoint(run):
    def ctrl_c(call):
        if call == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(ctrl_c)
    before = (run.folder / "checkpoint.safetensors").read_bytes()
    with pytest.raises(TrainingError, match=r"diverged\. The checkpoint in .* is from before that\..*lower train\.lr"):
        Training("train.lr=1e30", run=run).fit()
    assert (run.folder / "checkpoint.safetensors").read_bytes() == before


def test_a_checkpoint_is_never_of_broken_weights(run):
    with pytest.raises(TrainingError, match="diverged"):
        Training("train.lr=1e38", "train.checkpoint_minutes=0", run=run).fit()
    found = run.load("checkpoint")
    assert found is None or all(tensor.isfinite().all() for tensor in found[0].values())


def test_nan_loss_without_a_run_names_no_checkpoint():
    training = Training()
    step = training._step
    training._step = lambda batch: (loss * math.nan for loss in step(batch))
    with pytest.raises(TrainingError) as caught:
        training.fit()
    assert "the loss became nan by step 3" in str(caught.value)
    assert "checkpoint" not in str(caught.value)


def test_weights_that_the_last_step_broke_are_no_result():
    """Its loss was fine; what it did to the weights would show only in a step that never comes."""
    network = nn.Linear(1, 1, bias=False)
    settings = TrainConfig(epochs=1, batch=26, lr=1e38, weight_decay=0.0)
    with pytest.raises(TrainingError, match="the weights became infinite by step 1"):
        Trainer(settings, CPU, quiet=True).fit(network, BASE, lambda batch: [1e10 * network.weight.sum()])


def test_a_checkpoint_of_another_architecture_is_refused(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(lambda call: os.kill(os.getpid(), signal.SIGINT))
    for other in ("model.width=3", "model.projection=0", "mixing.repeats=0"):
        with pytest.raises(StoreError, match=r"checkpoint in .* is of another architecture: \d+ tensors differ"):
            Training(other, run=run).fit()


def test_a_damaged_checkpoint_is_refused(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(lambda call: os.kill(os.getpid(), signal.SIGINT))
    path = run.folder / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="checksum"):
        Training(run=run).fit()


# Selection by validation


def test_the_best_scored_state_is_the_result(run):
    training = Training(run=run)
    states, scores = [], iter([0.2, 0.7, 0.7])

    def validate():
        states.append(training.state())
        return next(scores)

    final = training.fit(validate=validate)
    assert len(states) == EPOCHS
    assert same(final, states[1]), "of equals, the first"
    assert [line["validation"] for line in run.metrics() if "validation" in line] == [0.2, 0.7, 0.7]


@pytest.mark.parametrize("stopped_in", [4, 7])
def test_the_best_is_remembered_through_a_stop(run, stopped_in):
    reference = Training()
    scores = {3: 0.9, 6: 0.1, 9: 0.5}

    def scored(training, offset=0):
        return lambda: scores[offset + training.calls]

    expected = reference.fit(validate=scored(reference))

    def ctrl_c(call):
        if call == stopped_in:
            os.kill(os.getpid(), signal.SIGINT)

    first = Training(run=run)
    with pytest.raises(KeyboardInterrupt):
        first.fit(ctrl_c, scored(first))
    second = Training(run=run)
    assert same(second.fit(validate=scored(second, stopped_in)), expected)
    assert not same(expected, Training().fit())


def test_validation_selects_by_held_out_base_images():
    """Oracle: train for 1, 2, … epochs on the part that is left, judge each by hand, take the first best."""
    # Under this schedule a shorter training is the beginning of a longer one.
    assignments = ["train.lr=0.03", "train.validation_share=0.4", "train.schedule=step", "model.width=4"]

    def method_after(epochs, selection):
        settings = small_config(*assignments, f"train.epochs={epochs}", f"train.selection={selection}")
        return Alice(settings, Trainer(settings.train, CPU, quiet=True))

    chosen = method_after(4, "validation")
    train, held_out = validation_split(chosen.config, BASE)
    assert sorted([*train.rows, *held_out.rows]) == list(range(len(BASE)))
    assert held_out.counts == {0: 3, 1: 3, 2: 2, 3: 2}  # 40% of 7, 7, 6, 6
    chosen.train_backbone(BASE)

    accuracies, states = [], []
    for epochs in range(1, 5):
        method = method_after(epochs, "last")
        method.train_backbone(train)
        features, labels = method.features(train).double().numpy(), train.labels
        means = [features[labels == label].mean(0) for label in range(CLASSES)]
        right = 0
        for feature, label in zip(method.features(held_out).double().numpy(), held_out.labels, strict=True):
            cosines = [feature @ mean / np.linalg.norm(feature) / np.linalg.norm(mean) for mean in means]
            right += int(np.argmax(cosines)) == label
        accuracies.append(right)
        states.append(method.backbone.state_dict())
    assert len(set(accuracies)) > 1, "otherwise there is nothing to choose"
    assert same(chosen.backbone.state_dict(), states[int(np.argmax(accuracies))])


# The estimate


def test_an_estimate_leaves_the_network_as_it_was(uninterrupted):
    training = Training()
    before = training.state()
    seconds = training.trainer.estimate(training.network, BASE, training._step)
    assert seconds > 0
    assert same(training.state(), before)
    assert all(parameter.grad is None for parameter in training.network.parameters())
    assert same(training.fit(), uninterrupted)


def test_an_estimate_is_not_made_with_one_class_only():
    """Images sorted by class would give a batch without mixtures, which is far too cheap."""
    images = part([40, 40], 0)
    images = images.select(np.argsort(images.labels, kind="stable"))
    training, seen = Training(), []

    def step(batch):
        seen.append(set(batch.labels.tolist()))
        return training._step(batch)

    training.trainer.estimate(training.network, images, step)
    assert all(labels == {0, 1} for labels in seen)


def test_an_estimate_grows_with_the_work(monkeypatch):
    """With a clock that ticks once per look, every timed step takes one tick."""
    ticks = iter(range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    found = []
    for epochs in (1, 4):
        training = Training(f"train.epochs={epochs}")
        found.append(training.trainer.estimate(training.network, BASE, training._step))
    assert found == [3.0, 12.0]  # 3 steps per epoch; the batch of 8 is below the probe's 16 images


# Elsewhere


def test_devices():
    assert pick_device("cpu") == CPU
    assert pick_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "meta", "cpu:x", "xpu"):
        with pytest.raises(TrainingError, match=f"--device {name}: no such device"):
            pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none():
    for name in ("cuda", "cuda:1"):
        with pytest.raises(TrainingError, match=f"--device {name}: .*no usable CUDA device.*--device cpu"):
            pick_device(name)


def test_the_loss_is_looked_at_rarely(monkeypatch):
    """Each look makes the host wait for the device."""
    looks = []
    original = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda self: looks.append(1) or original(self))
    network = nn.Linear(1, 1)
    settings = TrainConfig(epochs=1, batch=2, lr=0.01)
    Trainer(settings, CPU, quiet=True).fit(network, numbered(50), lambda batch: [network.weight.sum()])
    assert len(looks) == 3  # 25 steps: after 10, 20 and at the end


def test_tensorboard_has_every_line(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Training(run=run).fit()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in run.metrics()]
    assert len(found) == EPOCHS


def test_other_images_are_not_taken_for_the_same(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(lambda call: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(StoreError, match="not those this run began with"):
        Training(run=run).fit(images=BASE.select(np.arange(25)))


def test_a_step_without_memory_is_named():
    def step(batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    with pytest.raises(TrainingError, match=r"smaller train\.batch"):
        Trainer(small_config().train, CPU, quiet=True).fit(nn.Linear(1, 1), part([4, 4], 0), step)


def test_tensorboard_has_every_line_of_a_resumed_run(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).fit(lambda call: os.kill(os.getpid(), signal.SIGINT) if call == 3 else None)
    Training(run=run).fit()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [
        line["step"] for line in run.metrics() if "loss" in line
    ]
