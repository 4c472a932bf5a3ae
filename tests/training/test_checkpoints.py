"""Checkpoints: a training that was stopped, by a signal or a crash, continues to the same bits; what is refused."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from small_training import BASE, STEPS, Training, config, interrupt_in, same

from fscil.errors import StoreError, TrainingError
from fscil.training.loop import Trainer, learning_rate
from fscil.training.run_folder import Run
from helpers import CONTEXT


def test_same_seed_same_bits_other_seed_other_bits(uninterrupted):
    torch.manual_seed(123)
    np.random.seed(5)  # noqa: NPY002 (the global state must not matter)
    assert same(Training().train(), uninterrupted)
    other = Training("train.seed=1").train()
    assert not any(torch.equal(other[name], uninterrupted[name]) for name in ("head.weight", "backbone.conv1.weight"))


@pytest.mark.parametrize("stopped_in", [1, 2, 3, 4, 8, 9])
def test_after_ctrl_c_it_goes_on_to_the_same_bits(run, uninterrupted, stopped_in):
    """Steps 1, 2, 4, 8 are in the middle of an epoch, 3 and 9 at its end."""
    first = Training(run=run)
    with pytest.raises(KeyboardInterrupt):
        first.train(interrupt_in(stopped_in))
    assert first.calls == stopped_in, "the step was finished, and no other begun"
    assert run.load("checkpoint")[1]["step"] == stopped_in

    second = Training(run=Run.open(run.folder))
    assert same(second.train(), uninterrupted)
    assert second.calls == STEPS - stopped_in


def test_the_state_of_another_optimiser_goes_on_too(run):
    """AdamW's moments and number of steps."""
    adamw = ("train.optimizer=adamw", "train.lr=0.001")
    whole = Training(*adamw).train()
    with pytest.raises(KeyboardInterrupt):
        Training(*adamw, run=run).train(interrupt_in(4))
    assert same(Training(*adamw, run=Run.open(run.folder)).train(), whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_again_and_again(run, uninterrupted, number):
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            Training(run=run).train(interrupt_in(2, number))
    assert same(Training(run=run).train(), uninterrupted)


@pytest.mark.parametrize("fails_in", [2, 4, 7])
def test_after_a_crash_it_goes_on_from_the_last_checkpoint(run, uninterrupted, fails_in):
    def crash(call):
        if call == fails_in:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        Training("train.checkpoint_minutes=0", run=run).train(crash)
    assert run.load("checkpoint")[1]["step"] == fails_in - 1
    second = Training(run=run)
    assert same(second.train(), uninterrupted)
    assert second.calls == STEPS - fails_in + 1


def test_a_crash_before_the_first_checkpoint_starts_over(run, uninterrupted):
    def crash(call):
        if call == 5:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        Training(run=run).train(crash)
    assert run.metrics() != []
    assert same(Training(run=run).train(), uninterrupted)
    steps = [line["step"] for line in run.metrics()]
    assert steps == [3, 6, 9], "what the first attempt logged is forgotten"


def test_metrics_of_a_resumed_run_have_each_step_once(run):
    def crash(call):
        if call == 6:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        Training("train.checkpoint_minutes=0", run=run).train(crash)
    run.log(step=6, loss=123.0)  # as if the crash had come between the line and the checkpoint
    Training("train.checkpoint_minutes=0", run=run).train()
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["loss"] < 100 for line in lines)
    rates = [learning_rate(config().train, step, 3) for step in range(STEPS)]
    assert [line["rate"] for line in lines] == pytest.approx(rates)
    assert [line["epoch"] for line in lines] == pytest.approx([step / 3 for step in range(1, 10)])


def test_time_before_a_stop_counts(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(2))
    tensors, about = run.load("checkpoint")
    assert 0 < about["seconds"] < 1000
    run.save("checkpoint", tensors, {**about, "seconds": 1000.0})
    second = Training(run=run)
    second.train()
    assert 1000 < second.trainer.seconds < 2000


def test_tensorboard_has_every_line_of_a_resumed_run(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(3))
    Training(run=run).train()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [
        line["step"] for line in run.metrics() if "loss" in line
    ]


# Stopping


def test_signals_are_ours_only_while_training(run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during = []
    Training().train(lambda call: during.append(signal.getsignal(signal.SIGINT)))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert all(handler not in before for handler in during)
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(1))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_ctrl_c_does_not_wait_for_the_step(run):
    survived = []

    def twice(call):
        os.kill(os.getpid(), signal.SIGINT)
        survived.append("first")
        os.kill(os.getpid(), signal.SIGINT)
        survived.append("second")

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(twice)
    assert survived == ["first"]
    assert not run.has("checkpoint")


def test_ctrl_c_during_validation_is_not_lost(run):
    """It comes too late for this step's checkpoint, so the next step must write one."""

    def validate():
        os.kill(os.getpid(), signal.SIGINT)
        return 0.5

    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(validate=validate)
    assert run.load("checkpoint")[1]["step"] == 4


def test_training_works_outside_the_main_thread(uninterrupted):
    found = []
    thread = threading.Thread(target=lambda: found.append(Training().train()))
    thread.start()
    thread.join()
    assert same(found[0], uninterrupted)


# What is refused


def test_divergence_is_named_and_costs_no_checkpoint(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(4))
    before = (run.folder / "checkpoint.safetensors").read_bytes()
    with pytest.raises(TrainingError, match=r"diverged\. The checkpoint in .* is from before that\..*lower train\.lr"):
        Training("train.lr=1e30", run=run).train()
    assert (run.folder / "checkpoint.safetensors").read_bytes() == before


def test_a_checkpoint_is_never_of_broken_weights(run):
    with pytest.raises(TrainingError, match="diverged"):
        Training("train.lr=1e38", "train.checkpoint_minutes=0", run=run).train()
    found = run.load("checkpoint")
    assert found is None or all(tensor.isfinite().all() for tensor in found[0].values())


def test_a_checkpoint_of_another_architecture_is_refused(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(1))
    for other in ("model.width=3", "model.projection=0", "mixing.repeats=0"):
        with pytest.raises(StoreError, match=r"checkpoint in .* is of another architecture: \d+ tensors differ"):
            Training(other, run=run).train()


def test_a_damaged_checkpoint_is_refused(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(1))
    path = run.folder / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="checksum"):
        Training(run=run).train()


def test_other_images_are_not_taken_for_the_same(run):
    with pytest.raises(KeyboardInterrupt):
        Training(run=run).train(interrupt_in(1))
    with pytest.raises(StoreError, match="not those this run began with"):
        Training(run=run).train(images=BASE.select(np.arange(25)))


# The best by validation


@pytest.mark.parametrize("stopped_in", [4, 7])
def test_the_best_is_remembered_through_a_stop(run, stopped_in):
    reference = Training()
    scores = {3: 0.9, 6: 0.1, 9: 0.5}

    def scored(training, offset=0):
        return lambda: scores[offset + training.calls]

    expected = reference.train(validate=scored(reference))

    first = Training(run=run)
    with pytest.raises(KeyboardInterrupt):
        first.train(interrupt_in(stopped_in), scored(first))
    second = Training(run=run)
    assert same(second.train(validate=scored(second, stopped_in)), expected)
    assert not same(expected, Training().train())


@pytest.mark.parametrize(("late_in", "kept"), [(1, 1), (5, 3), (8, 8), (9, 9)])
def test_a_deadline_ends_training_with_the_best_state_so_far(late_in, kept, monkeypatch):
    """Scores after steps 3, 6, 9 and the last one before the deadline; of those until then the best is kept."""
    now = time.monotonic
    training = Training()
    training.trainer = Trainer(training.config.train, CONTEXT, deadline=now() + 1e6)
    states = {}
    scores = {1: 0.1, 3: 0.5, 5: 0.4, 6: 0.3, 8: 0.9, 9: 0.95}

    def validate():
        states[training.calls] = training.state()
        return scores[training.calls]

    def before(call):
        if call == late_in:
            monkeypatch.setattr(time, "monotonic", lambda: now() + 2e6)

    found = training.train(before, validate)
    assert training.calls == late_in
    assert max(states) == late_in
    assert same(found, states[kept])
    assert training.trainer.stopped_after == (None if late_in == STEPS else late_in / 3)
