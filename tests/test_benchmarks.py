"""The benchmarks run to their end at tiny sizes, and the literal program they compare with agrees with ours."""

import json
import math
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib import import_module
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch

from fscil.augment import Views
from fscil.losses import angular_penalty
from fscil.mixing import mix_classes
from fscil.preprocess import STATISTICS, normalise
from fscil.training.base_training import new_base_network
from fscil.training.context import Context
from helpers import small_config, tiny_dataset

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

ROWS = (
    "training step, width 16",
    "training step, width 64",
    "operations per second in the step, width 64",
    "operations per second in the step, width 32",
    "operations per second in the step, width 16",
    "two views, 32 px, per image",
    "two views, 84 px, per image",
    "two views, 224 px, per image",
    "feature extraction, width 16, per image",
    "feature extraction, width 64, per image",
    "all sessions, 5-shot and 1-shot, 10 draws, width 16",
    "peak memory of a training step, width 16",
    "`fscil --help`",
    "`import fscil`",
    "time to 5-shot harmonic accuracy, validation",
)


def start(script, *arguments):
    return subprocess.Popen(
        [sys.executable, str(BENCHMARKS / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )


def finished(script, *arguments):
    process = start(script, *arguments)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out, errors


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.fixture(scope="module")
def speed(tmp_path_factory):
    """One run of the whole table: its folder, what it printed, what it wrote."""
    folder = tmp_path_factory.mktemp("speed")
    options = ("--quick", "--long", "--work", folder / "work", "--out", folder / "speed")
    return folder, finished("speed.py", *options), json.loads((folder / "speed.json").read_text())


def test_the_table_has_every_row(speed):
    folder, (printed, said), results = speed
    assert tuple(row["what"] for row in results["rows"]) == ROWS
    lines = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    assert [line[0].removeprefix("| ") for line in lines[1:]] == list(ROWS)
    assert printed == (folder / "speed.md").read_text()
    assert all(what in said for what in ROWS[:-1])  # while it went
    assert "the figures mean nothing" in printed
    assert results["machine"]["threads"] == 1
    assert "speed.py --quick" in results["command"]


def test_figures_are_what_the_rounds_say(speed):
    *_, results = speed
    reached = [row for row in results["rows"] if "not reached" not in row["ours"]]
    assert len(reached) >= len(ROWS) - 1  # random images may teach the one more than the other
    for row in reached:
        assert math.isfinite(row["figure"])
        assert row["figure"] > 0 or row["kind"] == "seconds more"  # a start may take no longer, by chance
        assert min(min(times) for times in row["rounds"].values()) > 0
        ours, theirs, *_ = (median(times) for times in row["rounds"].values())
        figure, more_is_better = {
            "times faster": (theirs / ours, True),
            "share": (ours / theirs, True),
            "times at most": (ours / theirs, False),
            "seconds more": (ours - theirs, False),
        }[row["kind"]]
        assert row["figure"] == pytest.approx(figure)
        assert row["met"] is (figure >= row["goal"] if more_is_better else figure <= row["goal"])


def test_a_literal_training_that_is_done_is_not_repeated(speed, benchmark_module):
    folder, _, results = speed
    side = benchmark_module("speed_accuracy").literal_training
    again = side(None, width=8, hidden=64, batch=32, epochs=1, folder=str(folder / "work"))()
    assert [again["seconds"]] == results["rows"][-1]["rounds"]["literal"]


def test_ctrl_c_ends_the_benchmark_and_writes_nothing(tmp_path):
    process = start("speed.py", "--quick", "--only", "steps", "--out", tmp_path / "speed")
    assert process.stderr.readline().startswith("training step")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nothing was written" in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_data_that_is_not_there_is_said_at_once(tmp_path):
    process = start("speed.py", "--long", "--data", tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cifar100" in errors


def test_scaling(tmp_path):
    printed, _ = finished("scaling.py", "--quick", "--out", tmp_path / "scaling")
    series = json.loads((tmp_path / "scaling.json").read_text())["series"]
    twice = ["base classes", "base classes, at most 6 pairs", "image size", "sessions"]
    assert Counter(each["grows"] for each in series) == Counter([*twice, *twice, "images", "shots"])
    drawing = "".join(ElementTree.parse(tmp_path / "scaling.svg").getroot().itertext())
    for each in series:
        (x, y), (far, cost) = each["points"]  # two points: the line goes through both
        assert each["exponent"] == pytest.approx(math.log(cost / y) / math.log(far / x))
        assert f"{each['cost']} ~ n^{each['exponent']:.2f}" in drawing
        assert f"| {each['exponent']:.2f} |" in printed


def test_a_profile_accounts_for_the_whole_step(tmp_path):
    out = tmp_path / "profile.md"
    finished("speed_profile.py", "--width", 8, "--batch", 8, "--hidden", 64, "--matmul", 256, "--out", out)
    _, step, convolutions = out.read_text().split("\n\n")
    rows = [line.strip("| ").split(" | ") for line in step.splitlines() if line.startswith("| ")]
    shares = {name: int(share.rstrip("%")) for name, share in rows[1:-2]}
    assert 97 <= sum(shares.values()) <= 103  # each is rounded
    assert shares["convolution"] > shares["BatchNorm"] > 0
    rows = [line.strip("| ").split(" | ") for line in convolutions.splitlines() if line.startswith("| ")]
    assert [name for name, *_ in rows[1:]] == [
        f"width 8, {8 * n} channels of {32 // n} x {32 // n}" for n in (1, 2, 4, 8)
    ]
    assert all(int(share.rstrip("%")) > 0 for _, *shares in rows[1:] for share in shares)


def test_an_exponent_is_the_least_squares_slope(benchmark_module):
    sizes = np.array([3.0, 10, 40, 100])
    costs = 7 * sizes**1.7 * np.exp([0.1, -0.1, -0.1, 0.1])
    points = list(zip(sizes.tolist(), costs.tolist(), strict=True))
    x, y = np.log(sizes), np.log(costs)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert benchmark_module("scaling").Series("n", "cost", "s", points).exponent == pytest.approx(slope)


# What is counted


def test_operations_are_counted_as_defined(benchmark_module):
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.Conv2d(4, 6, 1, stride=2, groups=2),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 4 * 4, 5),
    )
    multiply_adds = 8 * 8 * 4 * (3 * 9) + 4 * 4 * 6 * 2 + 5 * 96
    assert benchmark_module("speed_ours").operations_per_image(network, 8) == 3 * 2 * multiply_adds


def test_saved_bytes_count_each_storage_once_and_no_parameter(benchmark_module):
    step = benchmark_module("speed_ours").Step(2, 4, 1, classes=3, hidden=8)
    weight = step.network.head.weight
    kept = torch.ones(10, requires_grad=True)

    def loss(batch):
        doubled = 2 * kept
        yield (doubled.exp() * doubled).sum() + (weight * weight).sum()  # saved: exp once, doubled once, weight never
        yield kept.exp().sum()

    step.loss = loss
    assert benchmark_module("speed_ours").saved_bytes(step) == [2 * 10 * 4, 10 * 4]


# The literal program as an oracle


def test_the_literal_program_and_ours_agree_on_a_batch(benchmark_module):
    literal = benchmark_module("literal")
    classes, images = 6, tiny_dataset(6).train
    config = small_config("model.width=8", "model.projection=16", "protocol.base_classes=6")
    ours = new_base_network(config, classes, Context.on("cpu")).train()
    theirs = literal.Network(8, classes, 16).train()
    theirs.load_state_dict(ours.state_dict())

    pixels, sizes = (torch.from_numpy(part) for part in images.batch(np.arange(12)))
    labels = torch.from_numpy(images.labels[:12])
    views = normalise(Views(16)(pixels, sizes, torch.Generator().manual_seed(0)), *STATISTICS["cifar10"])

    # Mixing is linear: what it makes of unit vectors tells who was mixed with whom, and how much of each.
    units = torch.eye(12)[None, :, None, :, None].expand(1, 12, 3, 12, 1)
    told = mix_classes(units, labels, classes, 4, generator=torch.Generator().manual_seed(7))[0][0, 12:, 0, :, 0]
    partners = told.topk(2).indices.tolist()
    pairs = [(i, j, float(row[i])) for row, (i, j) in zip(told, partners, strict=True)]

    mixed, targets = mix_classes(views, labels, classes, 4, generator=torch.Generator().manual_seed(7))
    first, second, literal_targets = literal.mix(*views, labels, classes, pairs)
    torch.testing.assert_close(torch.stack([first, second]), mixed)
    assert literal_targets.tolist() == targets.tolist()

    loss = torch.stack([angular_penalty(ours(view), targets) for view in mixed]).mean()
    literal_loss = literal.batch_loss(theirs, *views, labels, classes, pairs)
    assert literal_loss.item() == pytest.approx(loss.item(), abs=1e-4)
    loss.backward()
    literal_loss.backward()
    torch.testing.assert_close(theirs.head.weight.grad, ours.head.weight.grad, atol=1e-4, rtol=1e-3)


def test_the_literal_pairs(benchmark_module):
    literal = benchmark_module("literal")
    pairs = list(combinations(range(7), 2))
    assert [literal.pair_label(a, b, 7) for a, b in pairs] == list(range(7, 7 + len(pairs)))
    assert [literal.pair_label(b, a, 7) for a, b in pairs] == list(range(7, 7 + len(pairs)))
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    for i, j, share in literal.choose_pairs(labels, mixes=20):
        assert labels[i] != labels[j]
        assert 0.4 <= share <= 0.6


def test_literal_views(benchmark_module):
    literal = benchmark_module("literal")
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    mean, std = (torch.tensor(values)[:, None, None] for values in STATISTICS["cifar10"])
    for resize in (None, 24, (24, 26)):
        first, second, label = literal.TwoViews([image], [3], 16, resize)[0]
        assert first.shape == second.shape == (3, 16, 16)
        assert label == 3
        assert not torch.equal(first, second)
        for view in (first, second):
            pixels = 255 * (view * std + mean)
            torch.testing.assert_close(pixels, pixels.round().clamp(0, 255), atol=1e-3, rtol=0)
