"""Weights & Biases gets every line, offline; and only where it was asked for."""

import pytest

from fscil.config import load_recipe
from fscil.training.metrics_log import metrics_log
from fscil.training.run_folder import Run

wandb = pytest.importorskip("wandb", reason="wandb is not installed")


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", load_recipe("glyphs"), {})


def test_nothing_is_sent_unasked(run, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with metrics_log(run, 0) as log:
        log(1, loss=0.5)
    assert not (run.folder / "wandb").exists()


def test_every_line_is_in_the_file_that_wandb_sends(run, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "fscil-test")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with metrics_log(run, 0) as log:
        for step in (1, 2):
            log(step, loss=0.125 * step)
    (sent,) = (run.folder / "wandb").glob("offline-run-*/run-*.wandb")
    content = sent.read_bytes()
    assert content.count(b"0.125") >= 1
    assert content.count(b"0.25") >= 1
    assert [line["loss"] for line in run.metrics()] == [0.125, 0.25]
