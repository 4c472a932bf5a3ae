"""Every table and figure of the paper by one command, and what its grids share."""

import pytest

from fscil.config import load_recipe
from fscil.experiments.base_networks import base_key
from fscil.experiments.studies import paper, paper_methods
from fscil.methods import METHODS
from helpers import call, sets, write_images

QUICK = ("train.epochs=1", "incremental.steps=1", "protocol.draw=0", "mixing.repeats=1")
FOLDERS = ("comparison", "ablation", "margin-scale")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("photos"))


def study(photos, out, *more):
    return ["study", "paper", "folder", "--data", photos, "--out", out, "--shots", "2", "--quiet", *sets(*QUICK), *more]


def keys(cells):
    return {base_key(METHODS[cell.config.method].base_recipe(cell.config)) for cell in cells}


def test_the_systems_are_those_of_the_papers_tables():
    without_words = ["finetune", "icarl", "eeil", "lucir", "topic", "cec", "alice"]
    assert paper_methods(load_recipe("cifar100")) == paper_methods(load_recipe("cub200")) == without_words
    with_words = load_recipe("cub200", ["data.word_vectors=vectors.txt"])
    assert {*paper_methods(with_words)} == {*without_words, "semantic_kd", "synthesized"}
    assert paper_methods(load_recipe("cifar100", ["data.word_vectors=vectors.txt"])) == without_words
    assert {*paper_methods(load_recipe("folder"))} == {*without_words}  # of any data set of the paper


@pytest.mark.parametrize("recipe", ["cifar100", "mini_imagenet"])
def test_grids_share_networks(recipe):
    """ALICE is the last row of the ablation; its row with two views is a point of the sweeps."""
    found = {name: keys(cells) for name, (_, cells) in paper(load_recipe(recipe), [0]).items()}
    assert len(found["comparison"] & found["ablation"]) == 1
    assert len(found["ablation"] & found["margin-scale"]) == 1


def test_one_command_makes_all_of_it(tmp_path, photos, capsys):
    assert call(*study(photos, tmp_path)) == 0
    told = capsys.readouterr().out
    trained = [line.split()[2] for line in told.splitlines() if line.startswith("base network")]
    assert len(trained) == len({*trained}), "each network was trained once"
    for name in FOLDERS:
        assert (tmp_path / name / "report.html").exists()
        assert [*(tmp_path / name / "tables").glob("*.tex")]
    assert len([*(tmp_path / "ablation" / "figures").glob("features-*.svg")]) == 3
    shared = [network.name for network in (tmp_path / "comparison" / "base").iterdir()]
    twice = [key for key in shared if (tmp_path / "ablation" / "base" / key / "weights.safetensors").exists()]
    assert len(twice) == 1
    first, second = (tmp_path / name / "base" / twice[0] / "weights.safetensors" for name in FOLDERS[:2])
    assert first.samefile(second)

    (tmp_path / "comparison" / "report.html").unlink()
    assert call(*study(photos, tmp_path, "--dry-run")) == 0
    assert not (tmp_path / "comparison" / "report.html").exists()
    capsys.readouterr()
    assert call(*study(photos, tmp_path)) == 0
    assert "base network" not in capsys.readouterr().out
    assert (tmp_path / "comparison" / "report.html").exists()


def test_a_dry_run_plans_all_grids_and_writes_nothing(tmp_path, photos, capsys):
    assert call(*study(photos, tmp_path / "out", "--dry-run")) == 0
    assert capsys.readouterr().out.count("Time on this machine") == 3
    assert not (tmp_path / "out").exists()


def test_what_fails_in_one_grid_does_not_stop_the_others(tmp_path, photos, capsys):
    """Systems of the comparison diverge in their sessions; the studies have none."""
    assert call(*study(photos, tmp_path, "--set", "incremental.lr=1e30")) == 1
    assert "failed. The reasons are above" in capsys.readouterr().err
    assert all((tmp_path / name / "report.html").exists() for name in FOLDERS)
