"""Features of a run on disk: extracted once, whatever is killed, and those that the network gives."""

import numpy as np
import pytest
import torch

from fscil.data.images import Images
from fscil.experiments import run as experiments
from fscil.experiments.feature_files import features_of
from fscil.experiments.grid import Grid
from fscil.experiments.provenance import read_results
from fscil.experiments.studies import comparison
from fscil.features import Encoder
from fscil.runtime.files import load_tensors
from fscil.training.base_training import load_base_network
from fscil.training.build import dataset_of, preprocess_of
from fscil.training.context import Context
from fscil.training.run_folder import Run
from helpers import call, sets, small_config, write_images

CPU = Context.on("cpu", quiet=True)
SETTINGS = ("train.epochs=1", 'protocol.order=["lynx","ant","bee","cat","eel","fox","hen","koala"]')


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def run(photos, tmp_path):
    assert call("train", "folder", "--data", photos, "--out", tmp_path / "run", "--quiet", *sets(*SETTINGS)) == 0
    return Run.open(tmp_path / "run")


@pytest.fixture
def passed(monkeypatch):
    """How many images passed a network, call by call."""
    counts, encode = [], Encoder.__call__

    def counting(self, images):
        counts.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(Encoder, "__call__", counting)
    return counts


def test_the_file_holds_what_the_network_gives(run, photos, tmp_path):
    path = tmp_path / "features.safetensors"
    assert call("features", run.folder, "-o", path, "--quiet") == 0
    tensors, about = load_tensors(path)
    config = small_config(*SETTINGS)
    dataset, backbone = dataset_of(config, photos), load_base_network(config, run, CPU).backbone.eval()
    names = ["lynx", "ant", "bee", "cat", "eel", "fox", "hen", "koala"]
    assert about["classes"] == names
    assert about["protocol"] == {"base_classes": 6, "way": 2, "sessions": 1}
    for part in ("train", "test"):
        images: Images = getattr(dataset, part)
        mine = [place for place in range(len(images)) if dataset.class_names[images.labels[place]] in names]
        expected = [names.index(dataset.class_names[images.labels[place]]) for place in mine]
        assert tensors[f"{part}_labels"].tolist() == expected
        pixels, sizes = images.batch(np.array(mine))
        with torch.no_grad():
            wanted = backbone(preprocess_of(config)(torch.from_numpy(pixels), torch.from_numpy(sizes)))
        torch.testing.assert_close(tensors[part], wanted, rtol=1e-4, atol=1e-5)


def test_an_evaluation_takes_features_from_the_disk(run, photos, passed):
    first = experiments.evaluate(run, photos, CPU, shots=(2,))
    assert sum(passed) == 36 + 24 + 4, "base, test and the few of the session"
    passed.clear()
    again = experiments.evaluate(run, photos, CPU, shots=(2,))
    assert sum(passed) == 4, "the few alone"
    assert again["walks"] == first["walks"]
    passed.clear()
    features_of(run, photos, CPU)
    assert sum(passed) == 12, "what no evaluation needed: all training images of the new classes"
    passed.clear()
    experiments.evaluate(run, photos, CPU, changes=["method=alice_plda"], out=run.folder / "plda")
    assert sum(passed) == 4, "another method on the same network: the few"


def test_a_killed_extraction_goes_on(run, photos, passed, monkeypatch):
    monkeypatch.setattr("fscil.experiments.feature_files.PART", 10)
    whole, _ = features_of(run, photos, CPU)
    parts = sorted((run.folder / "features").glob("*/*.safetensors"))
    assert len(parts) == 4 + 3 + 2
    for path in parts[2:4]:  # as a kill leaves it
        path.unlink()
    passed.clear()
    again, _ = features_of(run, photos, CPU)
    assert sum(passed) == sum(10 if "base-0000030" not in path.name else 6 for path in parts[2:4])
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_features_of_other_weights_or_images_are_not_taken(run, photos, tmp_path, passed):
    features_of(run, photos, CPU)
    passed.clear()
    changed = write_images(tmp_path / "changed", test=2)
    features_of(run, changed, CPU)
    assert sum(passed) == 48 + 16


def test_the_cells_of_a_grid_share_the_features_of_their_network(photos, tmp_path, passed):
    """A second frozen method needs those of its few new images alone, and gives the same as by itself."""
    config = small_config(*SETTINGS)

    def walks(out, methods):
        grid = Grid(out, comparison(config, methods, [0]), photos, CPU, [].append)
        assert grid.run("bench", (1,), [0]) == {}
        return [walk["sessions"] for walk in read_results(out / "cells" / f"{methods[-1]}-seed0")["walks"]]

    alone = walks(tmp_path / "alone", ["teen"])
    walks(tmp_path / "both", ["ncm"])
    passed.clear()
    assert walks(tmp_path / "both", ["ncm", "teen"]) == alone
    new = config.protocol.way
    assert sum(passed) == new
