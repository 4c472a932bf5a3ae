"""Two real processes under torchrun against one: losses, weights, features and results; a killed one; Ctrl-C."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fscil.losses import LOSSES
from fscil.runtime.files import load_tensors
from fscil.training.run_folder import Run
from helpers import call, ctrl_c_at, environment, sets, write_images

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

# A loss that writes down the margin of every call, and whose process 1 dies in the middle of the first attempt.
MORTAL = """
import os, signal
from pathlib import Path
from fscil.losses import LOSSES

@LOSSES.register("mortal")
def mortal(cosine, target, scale, margin):
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    with Path(__file__).with_name(f"margins-{attempt}-{rank}").open("a") as file:
        print(margin, file=file)
    if (attempt, rank) == ("0", "1") and 0.5 <= margin < 0.99:
        os.kill(os.getpid(), signal.SIGKILL)
    return LOSSES["cosface"](cosine, target, scale, margin)
"""

# A loss that says when a quarter of the training is done; its process 0 then waits for a signal.
TELLING = """
import os, signal
from fscil.losses import LOSSES

waited = []

@LOSSES.register("telling")
def telling(cosine, target, scale, margin):
    if margin == 0.25 and os.environ.get("RANK") == "0" and not waited:
        waited.append(True)  # a step has several views
        received, sent = os.pipe()
        os.set_blocking(sent, False)
        signal.set_wakeup_fd(sent)
        print("a quarter is done", flush=True)
        os.read(received, 1)
        signal.set_wakeup_fd(-1)
    return LOSSES["cosface"](cosine, target, scale, margin)
"""


def torchrun(arguments, cache, *options):
    return subprocess.Popen(
        [*TORCHRUN, *options, *map(str, arguments)],
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture(scope="module")
def finished_job(tmp_path_factory, photos, pixel_cache):
    """The folder in which job_of_two.py has run, and what both of its processes wrote down: (record, tensors)."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "photos").symlink_to(photos)
    assert call("train", "folder", "--data", photos, "--out", folder / "run", "-q", *sets("train.epochs=1")) == 0
    shutil.copytree(folder / "run", folder / "run-of-two")
    process = torchrun([Path(__file__).with_name("job_of_two.py"), folder], pixel_cache)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return folder, [
        (json.loads((folder / f"{rank}.json").read_text()), load_tensors(folder / f"{rank}.safetensors")[0])
        for rank in (0, 1)
    ]


@pytest.fixture
def job(finished_job):
    return finished_job[1]


def test_two_processes_have_the_loss_curve_of_one(job):
    """The backbone is in float64, so that a wrong statistic cannot pass for rounding (views and loss are in float32).

    Batches are of 9 images, so that the shares differ. Objectives too: one's loss is of all images of a batch together.
    """
    assert {"plain", "mixed", "fact", "savc", "nc_fscil", "closer", "orco"} <= job[0][0]["losses"].keys()
    for name, (alone, both) in job[0][0]["losses"].items():
        assert len(alone) == len(both) > 3, name
        assert both == pytest.approx(alone, rel=1e-4), name


def test_two_processes_have_the_weights_of_one_and_of_each_other(job):
    (_, first), (_, second) = job
    trained = [key for key in first if key.startswith("two.") and ".backbone." in key]
    assert len(trained) > 300
    for key in trained:
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], first[f"one.{key.removeprefix('two.')}"], rtol=1e-3, atol=1e-3)


def test_images_are_divided_without_loss_or_repetition(job):
    """26 images, 2 steps of 9 per epoch."""
    (first, _), (second, _) = job
    steps = [own + other for own, other in zip(first["images"], second["images"], strict=True)]
    assert [(len(own), len(other)) for own, other in zip(first["images"], second["images"], strict=True)] == [
        (4, 5)
    ] * 6
    for epoch in range(3):
        seen = [image for step in steps[2 * epoch : 2 * epoch + 2] for image in step]
        assert len(seen) == len(set(seen)) == 18


def test_batch_norm_over_two_processes_is_that_of_the_whole_batch(job):
    """One process passes all 7 images, or the only one; outputs, gradients, running statistics, weight and bias."""
    tensors = job[0][1]
    keys = [key for key in tensors if key.startswith("one.norm.")]
    assert len(keys) == 4 + 6 + 6
    for key in keys:
        torch.testing.assert_close(tensors[key.replace("one", "two")], tensors[key], rtol=1e-9, atol=1e-9)


def test_features_are_those_of_one_process_to_the_bit(job):
    for _, tensors in job:
        assert torch.equal(tensors["one.features"], tensors["two.features"])


def test_results_are_those_of_one_process(job):
    alone, both, again = job[0][0]["results"]
    assert alone == both == again
    assert both["walks"]


def test_features_are_kept_as_by_one_process(finished_job):
    folder, _ = finished_job
    kept, wanted = (
        {path.relative_to(folder / run): path.read_bytes() for path in (folder / run / "features").rglob("*.*")}
        for run in ("run-of-two", "run")
    )
    assert kept == wanted
    assert len(kept) == 2


def test_bf16_trains_in_two_processes(job):
    for losses in job[0][0]["bf16"].values():
        assert len(losses) > 3
        assert all(0 < loss < 100 for loss in losses)


def test_a_mistake_in_one_process_is_told_once(job):
    (first, _), (second, _) = job
    assert first["failures"][0] == ["ConfigError", "no such thing."]
    assert first["failures"][1][0] == "TrainingError"
    assert first["failures"][1][1].startswith("process 1 on ")
    assert [kind for kind, _ in second["failures"]] == ["OtherProcessError"] * 2
    assert second["said"] == "by process 0"
    assert second["largest"] == [1.0, 0.0]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the threads of a process are named on Linux alone")
def test_no_thread_is_left_that_could_abort_a_process_that_ends(job):
    """A thread of the process group that is alive when the interpreter ends may abort it, after its work is done."""
    for record, _ in job:
        before, after = record["threads"]
        assert before, "gloo has threads while the processes are joined"
        assert after == []


def test_an_objective_that_does_not_divide_its_batches_is_refused(job):
    assert job[0][0]["refused"].startswith('train.objective = "undivided" does not divide its batches among processes:')


def test_torchrun_restarts_a_job_with_a_killed_process_from_its_checkpoint(tmp_path, photos, pixel_cache):
    plugin, out = tmp_path / "mortal.py", tmp_path / "run"
    plugin.write_text(MORTAL)
    settings = sets("loss.kind=mortal", "loss.margin=1.0", "loss.margin_warmup=1.0", "train.checkpoint_minutes=0")
    words = ["train", "folder", "--data", photos, "--out", out, "--plugin", plugin, *settings]
    process = torchrun(["-m", "fscil", *words], pixel_cache, "--max-restarts", "1")
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "error: another process of this job has ended or cannot be reached" in errors
    assert printed.count(f"Trained: {out / 'weights.safetensors'}") == 1
    before, after = (
        {float(line) for line in (tmp_path / f"margins-{attempt}-0").read_text().split()} - {0.0, 1.0}
        for attempt in "01"
    )  # 0 and 1 are those of the estimate
    assert max(before) == min(after) == 0.5, "the step that failed is the first to be done again"
    run = Run.open(out)
    assert run.finished
    assert [line["step"] for line in run.metrics()] == list(range(1, 9))
    assert call("evaluate", out, "--data", photos, "-q") == 0


def test_ctrl_c_loses_nothing_and_one_process_can_go_on(tmp_path, photos, pixel_cache):
    plugin, out = tmp_path / "telling.py", tmp_path / "run"
    plugin.write_text(TELLING)
    settings = sets("loss.kind=telling", "loss.margin=1.0", "loss.margin_warmup=1.0", "train.epochs=10")
    words = ["train", "folder", "--data", photos, "--out", out, "--plugin", plugin, *settings]
    process = torchrun(["-m", "fscil", *words], pixel_cache)
    lines = []
    while "a quarter is done\n" not in lines:
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate()
    assert process.returncode != 0
    assert "Stopped; nothing is lost. Continue with: torchrun --nproc-per-node 2 -m fscil train folder" in printed, (
        errors
    )
    checkpoint = Run.open(out).load("checkpoint")
    assert checkpoint[1]["step"] == 11, "the step in which the signal came is the last"
    try:
        assert call(*words, "--resume", "-q") == 0
    finally:
        LOSSES.unregister("telling")
    assert Run.open(out).finished


def test_two_processes_continue_the_checkpoint_of_one(tmp_path, photos, pixel_cache):
    out = tmp_path / "run"
    words = ["train", "folder", "--data", photos, "--out", out, *sets("train.checkpoint_minutes=0")]
    with ctrl_c_at(3):
        assert call(*words, "-q") == 130
    assert 3 <= Run.open(out).load("checkpoint")[1]["step"] < 8
    before = Run.open(out).metrics()
    process = torchrun(["-m", "fscil", *words, "--resume", "-q"], pixel_cache)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    run = Run.open(out)
    assert run.finished
    assert run.metrics()[: len(before)] == before
    assert [line["step"] for line in run.metrics()] == list(range(1, 9))


def test_other_commands_are_refused_under_torchrun(monkeypatch, capsys):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert call("bench", "glyphs") == 2
    assert "torchrun can run fscil train and fscil evaluate alone" in capsys.readouterr().err
