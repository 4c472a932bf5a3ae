"""Methods, data sets, backbones and losses from outside the package, through the command line to the report."""

import json
import re
import shlex
import subprocess

import pytest

from fscil.data import DATASETS
from fscil.losses import LOSSES
from fscil.methods import METHODS
from fscil.models import BACKBONES
from fscil.runtime.files import load_tensors
from fscil.training.run_folder import Run
from helpers import COMMAND, call, ctrl_c_at, environment, sets, write_images

METHOD = '''
import torch
from fscil.features import FeatureCache
from fscil.methods import METHODS, Method
from fscil.training.build import preprocess_of


@METHODS.register("nearest")
class Nearest(Method):
    """The class mean at the least Euclidean distance."""

    title = "My <nearest> means"
    means = torch.empty(0)

    def __init__(self, config, network, context, class_names=()):
        super().__init__(config, network, context, class_names)
        self.features = FeatureCache(network.backbone, preprocess_of(config), context.device, quiet=context.quiet)

    def fit_base(self, base, shots):
        self.means = self.features(base)[:0]
        self.learn(base)

    def learn(self, new):
        features, labels = self.features(new), torch.from_numpy(new.labels)
        self.means = torch.cat([self.means, *(features[labels == label].mean(0)[None] for label in labels.unique())])

    def scores(self, images):
        return -torch.cdist(self.features(images), self.means)

    def state(self):
        return {"means": self.means}

    def load_state(self, state):
        self.means = state["means"]
'''

PARTS = """
import numpy as np
from torch import nn
from fscil.data import DATASETS, Dataset, Images
from fscil.data.images import ArrayPixels
from fscil.losses import LOSSES, angular_penalty
from fscil.models import BACKBONES, Backbone


@DATASETS.register("noise")
def load(root=None):
    parts = []
    for seed, count in enumerate((6, 2)):
        labels = np.repeat(np.arange(12), count)
        pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 16, 16, 3), np.uint8)
        parts.append(Images.of(ArrayPixels(pixels), labels))
    return Dataset(*parts, tuple("abcdefghijkl"), "noise")


@BACKBONES.register("shallow")
def shallow(width=8):
    layers = {"conv": nn.Conv2d(3, width, 3), "relu": nn.ReLU(), "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    return Backbone(width, **layers)


@LOSSES.register("double")
def double(cosine, target, scale, margin):
    return 2 * angular_penalty(cosine, target, scale, margin)
"""
NOISE = ("data.name=noise", "model.backbone=shallow", "model.width=5")


@pytest.fixture
def plugin(tmp_path):
    """Writes a plugin; what it registers is forgotten after the test."""
    registries = (METHODS, DATASETS, BACKBONES, LOSSES)
    before = [set(registry) for registry in registries]

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    yield write
    for registry, known in zip(registries, before, strict=True):
        for name in set(registry) - known:
            registry.unregister(name)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("photos"))


def rows_of(markdown, heading):
    lines = markdown.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    cells = [line.replace("**", "").strip("| ").split(" | ") for line in lines if "|" in line]
    return {first: rest for first, *rest in cells}


def test_a_method_in_a_file_goes_through_bench_and_report(plugin, photos, tmp_path, capsys):
    path, out = plugin(METHOD), tmp_path / "out"
    arguments = ["bench", "folder", "--data", photos, "--methods", "alice,nearest", "--shots", "2", "--out", out]
    arguments += ["--plugin", path, "--quiet", *sets("train.epochs=1")]
    assert call(*arguments) == 0
    cell = out / "cells" / "nearest-seed0"
    provenance, results = (json.loads((cell / f"{name}.json").read_text()) for name in ("provenance", "results"))
    assert shlex.split(provenance["command"]) == ["fscil", *map(str, arguments)]
    METHODS.unregister("nearest")  # the report need not know it
    capsys.readouterr()
    assert call("report", out) == 0
    said = capsys.readouterr().out
    assert [line.partition("  ")[0] for line in said.splitlines()[3:5]] == ["ALICE", "My <nearest> means"]
    rows = rows_of((out / "report.md").read_text(), "Class-wise average accuracy, 2-shot")
    averages = [100 * session["average"] for session in results["walks"][0]["sessions"]]
    assert rows["My <nearest> means"][:-1] == [f"{value:.1f}" for value in averages]
    page = (out / "report.html").read_text()
    assert "My &lt;nearest&gt; means" in page
    assert f"--plugin {path}" in page


def test_a_method_in_a_file_is_trained_and_evaluated(plugin, photos, tmp_path, capsys):
    path, run = plugin(METHOD), tmp_path / "a run"
    settings = sets("method=nearest", "train.epochs=1")
    assert call("train", "folder", "--data", photos, "--out", run, "--plugin", path, "--quiet", *settings) == 0
    suggested = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("Next: fscil "))
    assert suggested == ["evaluate", str(run), "--plugin", str(path)]
    assert call(*suggested, "--quiet") == 0
    assert json.loads((run / "results.json").read_text())["shown"]["title"] == "My <nearest> means"


def test_data_set_backbone_and_loss_in_a_file(plugin, tmp_path):
    path = plugin(PARTS)

    def mean_loss(kind):
        out = tmp_path / kind
        settings = sets(*NOISE, f"loss.kind={kind}", "train.epochs=1", "train.lr=0")
        assert call("train", "folder", "--out", out, "--plugin", path, "--quiet", *settings) == 0
        assert call("evaluate", out, "--plugin", path, "--quiet") == 0
        assert load_tensors(out / "weights.safetensors")[0]["conv.weight"].shape == (5, 3, 3, 3)  # as model.width says
        return Run.open(out).metrics()[0]["loss"]

    assert mean_loss("double") == pytest.approx(2 * mean_loss("cosface"), rel=1e-4)
    results = json.loads((tmp_path / "double" / "results.json").read_text())
    assert (results["data"], results["backbone"], results["parameters"]) == ("noise", "shallow", 5 * 3 * 3 * 3 + 5)


def test_several_plugins_and_a_study(plugin, tmp_path, capsys):
    files = [plugin(METHOD, "method.py"), plugin(PARTS, "parts.py")]
    options = ["--plugin", files[0], "--plugin", files[1], "--shots", "1", "--out", tmp_path / "out", "--quiet"]
    settings = sets(*NOISE, "method=nearest", "train.epochs=1")
    assert call("study", "ablation", "folder", *options, *settings) == 0
    assert call("report", tmp_path / "out", "--plugin", files[0]) == 0
    assert (tmp_path / "out" / "report.md").read_text().startswith("# noise: ablation of My <nearest> means\n")


def test_other_images_of_a_plugins_data_set_are_not_mixed(plugin, tmp_path, capsys):
    arguments = ["bench", "folder", "--methods", "alice", "--shots", "1", "--out", tmp_path / "out", "--quiet"]
    assert call(*arguments, "--plugin", plugin(PARTS), *sets(*NOISE, "train.epochs=1")) == 0
    DATASETS.unregister("noise")
    BACKBONES.unregister("shallow")
    LOSSES.unregister("double")
    fewer = plugin(PARTS.replace("(6, 2)", "(5, 2)"), "fewer.py")
    assert call(*arguments, "--plugin", fewer, *sets(*NOISE, "train.epochs=1")) == 2
    assert '"a" has 6 training and 2 test images there, 5 and 2 here' in capsys.readouterr().err


def test_a_stopped_training_is_continued_with_its_plugin(plugin, tmp_path, capsys):
    path, run = plugin(PARTS, "my parts.py"), tmp_path / "run"
    with ctrl_c_at(2):
        settings = sets(*NOISE, "loss.kind=double", "train.checkpoint_minutes=0")
        assert call("train", "folder", "--out", run, "--plugin", path, "--quiet", *settings) == 130
    said = capsys.readouterr().out.splitlines()[-1]
    again = shlex.split(said.partition("Continue with: fscil ")[2])
    assert again[again.index("--plugin") + 1] == str(path)
    assert call(*again, "--quiet") == 0
    assert Run.open(run).finished


# Mistakes


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("method=nearst", 'no method named "nearst". Did you mean "nearest"? Installed: alice, .*, nearest.'),
        ("data.name=nois", 'no data set named "nois". Did you mean "noise"? Installed: cifar100, .*, noise.'),
        (
            "model.backbone=shalow",
            'no backbone named "shalow". Did you mean "shallow"? Installed: resnet18, .*, shallow.',
        ),
        ("loss.kind=doubel", 'no loss named "doubel". Did you mean "double"? Installed: cosface, .*, double.'),
    ],
)
def test_unknown_names_list_what_is_installed(plugin, photos, tmp_path, capsys, setting, told):
    path = plugin(METHOD + PARTS)
    arguments = ["--data", photos, "--plugin", path, "--quiet", *sets("train.epochs=1", setting)]
    assert call("train", "folder", "--out", tmp_path / "run", *arguments) in (1, 2)
    assert re.fullmatch(rf"error: {told}\n".replace("?", r"\?"), capsys.readouterr().err)
    assert list((tmp_path / "run").iterdir()) == [], "the same command must work once the name is right"


def test_a_run_of_a_plugin_that_is_not_given(plugin, tmp_path, capsys):
    path = plugin(PARTS)
    settings = sets(*NOISE, "train.epochs=0")
    assert call("train", "folder", "--out", tmp_path / "run", "--plugin", path, "--quiet", *settings) == 0
    DATASETS.unregister("noise")
    capsys.readouterr()
    assert call("evaluate", tmp_path / "run", "--quiet") == 1
    assert capsys.readouterr().err.startswith('error: no data set named "noise". Installed: cifar100, ')


@pytest.mark.parametrize("command", [["train", "glyphs"], ["bench", "glyphs"], ["report", "."], ["evaluate", "."]])
def test_a_plugin_that_cannot_be_loaded(plugin, tmp_path, capsys, command):
    for path, told in ((tmp_path / "gone.py", "no such Python file."), (plugin("import nonsense_of_mine"), "nonsense")):
        assert call(*command, "--plugin", path) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: --plugin {path}: ")
        assert told in error
        assert error.count("\n") == 1


# Installed packages

GROUPS = {"methods": "Nearest", "datasets": "load", "backbones": "shallow", "losses": "double"}


def install(folder, entry_points):
    """What pip leaves of a package: its modules, and which entry points it has."""
    (folder / "mine.py").write_text(re.sub(r"@\w+\.register\(.*\)\n", "", METHOD + PARTS), encoding="utf-8")
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"[fscil.{group}]\nmy-{group} = mine:{value}\n" for group, value in entry_points.items()]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def run(arguments, installed, cache):
    variables = environment(cache) | {"PYTHONPATH": str(installed)}
    return subprocess.run([*COMMAND, *map(str, arguments)], env=variables, capture_output=True, text=True, check=False)


def test_an_installed_package_adds_all_four_kinds(tmp_path, pixel_cache):
    installed = install(tmp_path, GROUPS)
    settings = sets("data.name=my-datasets", "model.backbone=my-backbones", "loss.kind=my-losses", "train.epochs=1")
    out = tmp_path / "out"
    options = ["--methods", "alice,my-methods", "--shots", "1", "--out", out, "--quiet"]
    done = run(["bench", "folder", *options, *settings], installed, pixel_cache)
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "cells" / "my-methods-seed0" / "results.json").read_text())
    assert (results["data"], results["backbone"]) == ("my-datasets", "my-backbones")
    assert results["shown"]["title"] == "My <nearest> means"


def test_a_package_that_is_broken_is_named(tmp_path, pixel_cache):
    installed = install(tmp_path, {"methods": "Gone"})
    done = run(["train", "glyphs", "--out", tmp_path / "run", "--set", "method=my-methods"], installed, pixel_cache)
    assert done.returncode == 2
    assert done.stderr.startswith('error: method "my-methods" of the package mine cannot be loaded: ')
    assert done.stderr.count("\n") == 1


def test_help_loads_no_package(tmp_path, pixel_cache):
    installed = install(tmp_path, GROUPS)
    (installed / "mine.py").write_text("raise SystemExit('imported')\n")
    done = run(["bench", "--help"], installed, pixel_cache)
    assert done.returncode == 0
    assert "--plugin" in done.stdout
