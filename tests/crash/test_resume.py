"""`fscil train`, stopped by Ctrl-C or by kill -9 at any moment, goes on to the same bits with --resume."""

import errno
import os
import shlex
import signal
import subprocess
import time
from contextlib import suppress

import pytest
import torch

from fscil.runtime.files import load_tensors
from fscil.training.run_folder import Run
from helpers import call, sets, start, write_images

TIMEOUT = 120.0  # seconds until a test fails; nothing is measured by it
SETTINGS = sets("train.epochs=12", "train.checkpoint_minutes=0")
STEPS = 12 * 4  # 36 base images in batches of 8


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("animals"))


@pytest.fixture(scope="module")
def expected(images, tmp_path_factory):
    """The weights of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert call("train", "folder", "--data", images, "--out", folder, "--quiet", *sets("train.epochs=12")) == 0
    return load_tensors(folder / "weights.safetensors")[0]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As in the other process: with another number of threads sums come in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_until(folder, images, pixel_cache, lines):
    """A process that is training, with at least this many lines of metrics behind it."""
    arguments = ["train", "folder", "--data", images, "--out", folder, "--quiet", *SETTINGS]
    process = start(arguments, pixel_cache)
    deadline = time.monotonic() + TIMEOUT
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.005)  # it should go on training
        if process.returncode is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"no {lines} steps: {process.communicate()}")
    return process


def weights_of(folder):
    run = Run.open(folder)
    assert run.finished
    assert [line["step"] for line in run.metrics()] == list(range(1, STEPS + 1))
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".part")]
    return load_tensors(run.weights)[0]


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_ctrl_c_and_the_command_it_names(tmp_path, images, expected, pixel_cache):
    folder = tmp_path / "run with a space"
    process = train_until(folder, images, pixel_cache, lines=6)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert errors == ""
    step = Run.open(folder).load("checkpoint")[1]["step"]
    assert 6 <= step < STEPS
    assert not Run.open(folder).finished
    # The last line says how to go on; do as it says.
    again = said.strip().splitlines()[-1]
    assert again.startswith("Stopped; nothing is lost. Continue with: fscil train folder --out ")
    words = shlex.split(again.partition("Continue with: fscil ")[2])
    assert call(*words, "--quiet") == 0
    assert same(weights_of(folder), expected)


def test_kill_9_and_nobody_else_while_it_lives(tmp_path, images, expected, pixel_cache, capsys):
    folder = tmp_path / "run"
    process = train_until(folder, images, pixel_cache, lines=2)
    try:
        code = call("train", "folder", "--out", folder, "--quiet", "--resume", *SETTINGS)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert code == 1
    assert "another process is working on this run" in capsys.readouterr().err
    assert process.returncode == -signal.SIGKILL
    assert not Run.open(folder).finished
    assert call("train", "folder", "--out", folder, "--quiet", "--resume", *SETTINGS) == 0
    assert same(weights_of(folder), expected)


def test_a_full_disk_while_saving(tmp_path, monkeypatch, images, expected, capsys):
    folder = tmp_path / "run"
    arguments = ["train", "folder", "--data", images, "--out", folder, "--quiet", *SETTINGS]
    room, fsync = iter(range(30)), os.fsync

    def fills_up(handle):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fills_up)
        assert call(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {folder}")
    assert "no space left on the device" in error
    assert error.count("\n") == 1
    assert 1 < Run.open(folder).load("checkpoint")[1]["step"] < STEPS
    assert call(*arguments, "--resume") == 0
    assert same(weights_of(folder), expected)
