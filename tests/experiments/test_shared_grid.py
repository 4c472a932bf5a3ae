"""One grid by several processes, killed ones among them; folders that are joined; a plan that runs nothing."""

import hashlib
import json
import shutil
import signal

import pytest

from fscil.errors import ConfigError, StoreError
from fscil.experiments.base_networks import BeingTrainedError, claimed
from fscil.experiments.cells import Cell
from fscil.experiments.grid import Grid
from fscil.experiments.merge import merge_grids
from fscil.experiments.plan import describe_plan
from fscil.experiments.provenance import read_results
from fscil.experiments.studies import comparison
from fscil.methods import METHODS
from fscil.training.context import Context
from helpers import call, sets, small_config, start, write_images

CPU = Context.on("cpu", quiet=True)
QUICK = ("train.epochs=1", "incremental.steps=1", "protocol.draw=0")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """Two methods and two seeds by one process."""
    out = tmp_path_factory.mktemp("whole")
    assert call(*bench(photos, out)) == 0
    return out


def bench(photos, out, *more):
    options = ["--data", photos, "--methods", "alice,finetune", "--seeds", "2", "--shots", "2", "--draws", "2"]
    return ["bench", "folder", *options, "--out", out, "--quiet", *sets(*QUICK), *more]


def run(out, photos, cells, draws=(0,), said=None):
    return Grid(out, cells, photos, CPU, (said if said is not None else []).append).run("bench", (2,), draws)


def files(out):
    """Digests of all that identical runs must write identically."""
    kept = [*out.glob("cells/*/results.json"), *out.glob("cells/**/*.safetensors"), *out.glob("base/*/*.safetensors")]
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def test_two_processes_write_what_one_writes(tmp_path, photos, whole, pixel_cache):
    workers = [start(bench(photos, tmp_path), pixel_cache) for _ in range(2)]
    told = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
    assert files(tmp_path) == files(whole)
    trained = [line for text in told for line in text.splitlines() if line.startswith("base network")]
    assert len(trained) == len({line.split()[2] for line in trained}) == 4, "each network was trained once"


def test_the_cells_of_a_killed_process_are_taken_over(tmp_path, photos, whole, pixel_cache):
    victim = start(bench(photos, tmp_path), pixel_cache)
    assert victim.stdout.readline().startswith("bench: 4 cells")
    assert "base network" in victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close(), victim.stderr.close()
    assert call(*bench(photos, tmp_path)) == 0
    assert files(tmp_path) == files(whole)


def test_what_others_work_on_is_left_to_them(tmp_path, photos):
    cells, said = comparison(small_config(*QUICK), ["alice", "finetune"], [0]), []
    with claimed(tmp_path / "cells/alice-seed0"):
        grid = Grid(tmp_path, cells, photos, CPU, said.append)
        assert grid.run("bench", (2,), [0], wait=False) == {}
    assert "Left to other processes: 1 cell (alice-seed0)." in said
    assert (tmp_path / "cells/finetune-seed0/results.json").exists()
    assert not (tmp_path / "cells/alice-seed0/results.json").exists()


def test_cells_whose_network_is_being_trained_wait(tmp_path, photos):
    """Others are done meanwhile, and nothing fails."""
    config, said = small_config(*QUICK), []
    cells = comparison(config, ["finetune", "icarl", "alice"], [0])
    grid = Grid(tmp_path, cells, photos, CPU, said.append)
    network = grid.runner.networks.run_of(METHODS["finetune"].base_recipe(config))
    with claimed(network.folder):
        with pytest.raises(BeingTrainedError):
            grid.runner.train(cells[0])
        assert grid.run("bench", (2,), [0], wait=False) == {}
        assert "Left to other processes: 2 cells (finetune-seed0, icarl-seed0)." in said
        assert (tmp_path / "cells/alice-seed0/results.json").exists()
    assert grid.run("bench", (2,), [0]) == {}
    assert not list(tmp_path.glob("cells/*/failed.txt"))


def test_photos_that_changed_are_refused(tmp_path):
    """Also where the numbers of images stayed the same."""
    root = write_images(tmp_path / "photos")
    cells = [Cell("alice", small_config(*QUICK))]
    assert run(tmp_path / "out", root, cells) == {}
    shutil.copy(root / "test/ant/test0.png", root / "test/bee/test0.png")
    problem = run(tmp_path / "out", root, cells, draws=(0, 1))["alice-seed0"]
    assert "their content has changed" in problem


# Results that can be compared byte by byte


def test_results_hold_what_decides_them_and_nothing_else(whole, photos):
    plain = json.loads((whole / "cells/alice-seed0/results.json").read_text())
    assert plain["settings"]["train.seed"] == 0
    assert plain["settings"]["loss.margin"] == 0.4
    assert plain["classes"][:2] == ["ant", "bee"]
    assert len(plain["data_fingerprint"]) == 64
    assert plain["versions"].keys() == {"fscil", "torch", "numpy"}
    assert not {"machine", "command", "fit_seconds"} & plain.keys()
    assert not {"seconds", "command"} & plain["walks"][0].keys()
    told = read_results(whole / "cells/alice-seed0")
    assert told["machine"]["cpu"]
    assert told["training"]["seconds"] >= 0
    assert all(walk["command"].startswith("fscil bench folder") and walk["seconds"] >= 0 for walk in told["walks"])
    assert [walk["sessions"] for walk in told["walks"]] == [walk["sessions"] for walk in plain["walks"]]


def test_walks_stand_in_one_order_whatever_was_asked_for_first(tmp_path, photos, whole):
    assert call(*bench(photos, tmp_path, "--draws", "1")) == 0
    assert call(*bench(photos, tmp_path)) == 0
    assert files(tmp_path) == files(whole)


# Merging


def test_merged_folders_are_as_one(tmp_path, photos, whole):
    """One machine has other methods, another one other draws."""
    config = small_config(*QUICK)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    run(first, photos, comparison(config, ["alice"], [0, 1]), draws=(0,))
    run(second, photos, comparison(config, ["alice"], [0, 1]), draws=(1,))
    run(third, photos, comparison(config, ["finetune"], [0, 1]), draws=(0, 1))
    said = []
    merge_grids([first, second, third], tmp_path / "out", said.append)
    assert said == [f"{tmp_path / 'out'}: 4 cells with 8 walks, of 3 folders"]
    assert files(tmp_path / "out") == files(whole)
    assert len(read_results(tmp_path / "out/cells/alice-seed1")["walks"]) == 2
    assert call("report", tmp_path / "out") == 0
    cells = comparison(config, ["alice", "finetune"], [0, 1])
    told = []
    assert run(tmp_path / "out", photos, cells, (0, 1), told) == {}
    assert told == [f"{cell.name}: done before" for cell in cells]


def test_what_does_not_belong_together_is_not_merged(tmp_path, photos):
    first = tmp_path / "first"
    run(first, photos, [Cell("alice", small_config(*QUICK))])

    def refused(name, told, root=photos, kind="bench", label="alice", settings=()):
        cells = [Cell(label, small_config(*QUICK, *settings))]
        Grid(tmp_path / name, cells, root, CPU, [].append).run(kind, (2,), [0])
        with pytest.raises(ConfigError, match=told):
            merge_grids([first, tmp_path / name], tmp_path / "out", [].append)
        assert not (tmp_path / "out").exists()

    refused("settings", r"different settings: loss\.margin", settings=["loss.margin=0.1"])
    refused("kind", "is of bench", kind="ablation")
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "train/ant/train0.png").unlink()
    refused("counts", "different images", root=fewer)
    other = shutil.copytree(photos, tmp_path / "changed")
    shutil.copy(other / "test/ant/test0.png", other / "test/bee/test0.png")
    refused("content", "their content differs", root=other)
    with pytest.raises(StoreError, match=r"has no grid\.json"):
        merge_grids([first, tmp_path], tmp_path / "out", [].append)
    with pytest.raises(StoreError, match="not an empty folder"):
        merge_grids([first], first, [].append)


def test_merge_on_the_command_line(tmp_path, photos, capsys):
    run(tmp_path / "a", photos, [Cell("alice", small_config(*QUICK))])
    assert call("merge", tmp_path / "a", tmp_path / "none", "--out", tmp_path / "c") == 1
    assert call("merge", tmp_path / "a", "--out", tmp_path / "c") == 0
    assert f"fscil report {tmp_path / 'c'}" in capsys.readouterr().out


# Plans


def test_a_dry_run_tells_and_does_nothing(tmp_path, photos, capsys):
    assert call(*bench(photos, tmp_path / "out", "--dry-run")) == 0
    text = capsys.readouterr().out
    assert "4 cells of 2 walks each, from 4 base networks:" in text
    assert text.count("to be trained in about") == 4
    assert text.count(": to be done") == 4
    assert "base training about" in text
    assert not (tmp_path / "out").exists()


def test_a_plan_knows_what_is_done(tmp_path, photos):
    cells = comparison(small_config(*QUICK), ["finetune", "icarl", "alice"], [0])
    run(tmp_path, photos, cells[:1], draws=(0,))
    grid = Grid(tmp_path, cells, photos, CPU, [].append)
    lines = describe_plan(grid.runner, cells, (2,), [0, 1], CPU).splitlines()
    assert lines[0] == "3 cells of 2 walks each, from 2 base networks:"
    assert lines[1].endswith(": trained")
    assert lines[2:4] == ["  finetune-seed0: 1 of 2 walks done", "  icarl-seed0: to be done"]
    assert lines[5] == "  alice-seed0: to be done"
    assert "sessions about" in lines[6]
    assert "Not counted: 4 walks of methods that were not measured here yet." in lines[6]
    assert "1 epoch, seed 0" in lines[4]


def test_a_plan_refuses_what_the_run_would_refuse(tmp_path, photos, capsys):
    run(tmp_path, photos, [Cell("finetune", small_config(*QUICK, "method=finetune"))])
    options = ["--data", photos, "--methods", "finetune", "--shots", "2", "--out", tmp_path, "--quiet", "--dry-run"]
    before = (tmp_path / "cells/finetune-seed0/config.toml").read_bytes()
    assert call("bench", "folder", *options, *sets(*QUICK, "train.lr=0.3")) == 0
    told = capsys.readouterr().out
    assert "finetune-seed0 holds results of other settings: train.lr = 0.05 there, 0.3 here" in told
    assert "1 draw, " in told
    assert "base training about 0 s" in told
    assert (tmp_path / "cells/finetune-seed0/config.toml").read_bytes() == before
    assert call("study", "ablation", "folder", *options[:2], *options[4:], *sets(*QUICK)) == 2
    assert "holds the cells of bench, not of ablation" in capsys.readouterr().err
