"""The examples of docs/extending.md run as written: each file under its name, each command in that folder."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from fscil.config import TrainConfig
from fscil.data import DATASETS, load
from fscil.losses import LOSSES
from fscil.methods import METHODS
from fscil.models import BACKBONES, build_backbone
from fscil.runtime.files import load_tensors, read_json
from fscil.runtime.registry import load_plugin
from fscil.training.base_network import OBJECTIVES
from fscil.training.optimizers import OPTIMIZERS
from helpers import COMMAND, call, environment

TEXT = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
FENCE = r"^```(\w+)\n(.*?)^```$"
# `name.py`, which ends the paragraph or is followed by what it is, then the fence.
FILES = dict(re.findall(r"`([\w.]+\.(?:py|toml))`[^`]*?:\n\n```\w+\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
COMMANDS = [
    shlex.split(line)
    for language, content in re.findall(FENCE, TEXT, re.DOTALL | re.MULTILINE)
    if language == "sh"
    for line in content.splitlines()
]
INSTALLED = [words for words in COMMANDS if "runs/installed" in words]
SHORTER = ["--quiet", "--set", "train.epochs=0", "--set", "model.width=1"]  # glyphs takes minutes
REGISTRIES = (METHODS, DATASETS, BACKBONES, LOSSES, OPTIMIZERS, OBJECTIVES)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder with the files, in which the commands run one after the other."""
    folder = tmp_path_factory.mktemp("extending")
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(autouse=True)
def as_before():
    """What a plugin has registered goes after each test, so that each must load its own."""
    known, modules = [set(registry) for registry in REGISTRIES], set(sys.modules)
    yield
    for registry, names in zip(REGISTRIES, known, strict=True):
        for name in set(registry) - names:
            registry.unregister(name)
    for name in set(sys.modules) - modules:
        if name.startswith("fscil_plugin_"):
            del sys.modules[name]


def test_every_fence_is_a_file_or_a_command():
    languages = [language for language, _ in re.findall(FENCE, TEXT, re.DOTALL | re.MULTILINE)]
    assert set(FILES) == {
        "shrunken.py",
        "pyproject.toml",
        "digits.py",
        "digits.toml",
        "conv4.py",
        "smooth.py",
        "no_decay.py",
        "centers.py",
    }
    assert sorted(languages) == sorted([*["python"] * 6, *["toml"] * 2, *["sh"] * languages.count("sh")])
    assert len(INSTALLED) == 1


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in INSTALLED], ids=shlex.join)
def test_a_command(place, words):
    shorter = SHORTER if "glyphs" in words else ["--quiet"] if words[1] != "report" else []
    assert words[0] == "fscil"
    assert call(*words[1:], *shorter) == 0


def test_the_report_shows_the_method_by_its_title(place):
    assert "| Shrunken means |" in (place / "runs" / "mine" / "report.md").read_text(encoding="utf-8")


def test_the_runs_used_what_was_registered(place):
    assert read_json(place / "runs" / "digits" / "results.json")["data"] == "digits"
    assert read_json(place / "runs" / "conv4" / "results.json")["backbone"] == "conv4"
    centers, _ = load_tensors(place / "runs" / "centers" / "extras.safetensors")
    assert centers["centers"].shape == (6, 64)
    assert centers["centers"].abs().sum(1).min() > 0
    assert 'optimizer = "sgd_no_decay"' in (place / "runs" / "no_decay" / "config.toml").read_text(encoding="utf-8")
    assert 'kind = "smooth_cosface"' in (place / "runs" / "smooth" / "config.toml").read_text(encoding="utf-8")


def test_the_method_as_an_installed_package(place, pixel_cache):
    """An installed package is a module and its metadata on the path: what pip makes of the pyproject.toml."""
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    ((group, points),) = project["entry-points"].items()
    site = place / "site"
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    metadata.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    metadata.joinpath("entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
    module = FILES["shrunken.py"].replace('@METHODS.register("shrunken")\n', "")
    assert module != FILES["shrunken.py"]
    (site / "fscil_shrunken.py").write_text(module, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    found = subprocess.run(
        [*COMMAND, *INSTALLED[0][1:], *SHORTER],
        env={**environment(pixel_cache), "PYTHONPATH": path},
        cwd=place,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    results = read_json(place / "runs" / "installed" / "cells" / "shrunken-seed0" / "results.json")
    assert results["method"] == "shrunken"


def test_the_data_set(place):
    load_plugin(place / "digits.py")
    digits = load("digits")
    assert len(digits.train) + len(digits.test) == 1797
    assert digits.class_names == tuple("0123456789")
    pixels, sizes = digits.train.batch(np.arange(3))
    assert pixels.shape == (3, 32, 32, 3)
    assert pixels.max() <= 255
    assert (sizes == 32).all()
    assert not set(digits.train.rows.tolist()) & set(digits.test.rows.tolist())


def test_the_backbone(place):
    load_plugin(place / "conv4.py")
    backbone = build_backbone("conv4", width=6)
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 6)
    assert backbone.feature_dim == 6


def test_the_loss_is_its_formula(place):
    """-(0.9 + 0.1 / C) log p_target - 0.1 / C * sum of the other log p, the target's cosine less the margin."""
    load_plugin(place / "smooth.py")
    cosine = torch.tensor([[0.5, -0.2, 0.1], [0.3, 0.9, -1.0]], dtype=torch.float64)
    target = torch.tensor([2, 1])
    total = 0.0
    for row, label in zip(cosine, target, strict=True):
        logits = [10 * (value - (0.4 if place == label else 0.0)) for place, value in enumerate(row)]
        norm = torch.logsumexp(torch.stack(logits), 0)
        weights = [0.1 / 3 + (0.9 if place == label else 0.0) for place in range(3)]
        total -= sum(weight * (logit - norm) for weight, logit in zip(weights, logits, strict=True))
    torch.testing.assert_close(LOSSES["smooth_cosface"](cosine, target, 10.0, 0.4), total / 2)


def test_the_optimiser_decays_matrices_alone(place):
    load_plugin(place / "no_decay.py")
    matrix, vector = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    settings = TrainConfig(lr=0.1, weight_decay=0.5, momentum=0.0, nesterov=False)
    optimizer = OPTIMIZERS["sgd_no_decay"]([matrix, vector], settings)
    matrix.grad, vector.grad = torch.zeros(2, 2), torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close(matrix, torch.full((2, 2), 0.95))
    torch.testing.assert_close(vector, torch.ones(2))
