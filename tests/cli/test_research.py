"""The command line as a user meets it: what it prints, what it writes, and one clear line for every mistake."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fscil
from fscil import config
from fscil.data.images import ArrayPixels, Dataset, Images
from fscil.experiments import run as experiments
from fscil.report import run_tables
from fscil.runtime.files import load_tensors
from fscil.training.run_folder import Run
from grids import groups
from helpers import NAMES, SIZE, call, picture, sets, write_images

COMMANDS = ("recipes", "data", "train", "evaluate", "demo")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("animals"))


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "animals"
    assert call("train", "folder", "--data", images, "--out", folder, "--quiet", *sets()) == 0
    return folder


@pytest.fixture
def trained(finished, tmp_path):
    """A finished run of the test's own."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def fails(capsys):
    """The one line that a mistake gives."""

    def check(*arguments):
        capsys.readouterr()
        assert call(*arguments) in (1, 2)
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1, error
        assert "Traceback" not in error
        return error[len("error: ") : -1]

    return check


def train(images, out, *more):
    return ("train", "folder", "--data", images, "--out", out, "--quiet", *more)


# Help and lists


def test_help_lists_every_command(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    assert all(f" {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    assert call(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"fscil {command}" in text
    assert len(text.splitlines()) > 5


def test_help_does_not_load_torch():
    program = (
        "import sys\n"
        "sys.argv = ['fscil', '--help']\n"
        "from fscil.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: fscil" in done.stdout


def test_the_installed_program_is_this_one():
    program = Path(sys.executable).with_name("fscil")
    if not program.exists():
        pytest.skip("fscil is not installed as a program beside this Python")
    done = subprocess.run([program, "recipes"], capture_output=True, text=True, check=True)
    assert "cifar100" in done.stdout


def test_recipes(capsys):
    assert call("recipes") == 0
    text = capsys.readouterr().out
    for name in ("cifar100", "cifar100_cpu", "mini_imagenet", "cub200", "glyphs", "folder"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert line.split(maxsplit=1)[1] == config.load_recipe(name).about


def test_data_says_what_is_there(capsys, images):
    assert call("data", "folder", "--root", images) == 0
    text = capsys.readouterr().out
    assert "12 classes" in text
    assert "72 images of 12 classes, 6 per class; 16 pixels wide, 16 high" in text
    assert "36 images of 12 classes, 3 per class" in text


def test_data_lists_the_names_that_a_list_of_sessions_needs(fails, capsys, images, tmp_path):
    assert call("data", "folder", "--root", images, "--classes") == 0
    names = capsys.readouterr().out.splitlines()
    assert sorted(names) == sorted(NAMES)
    file = tmp_path / "sessions.csv"
    file.write_text(
        "class,session\n" + "\n".join(f"{name},0" for name in names[:-1]) + "\nkoalla,1\n", encoding="utf-8"
    )
    error = fails(*train(images, tmp_path / "run", "--sessions", file, *sets("protocol.shots=[2]")))
    assert 'has no class "koalla". Did you mean "koala"? All names: fscil data folder --root DIR --classes' in error


def test_data_that_is_missing_comes_with_a_command_that_helps(fails, tmp_path):
    error = fails("data", "cifar100", "--root", tmp_path)
    assert "cifar-100-python.tar.gz" in error
    assert f"fscil data cifar100 --root {tmp_path} --download" in error


def test_download_needs_a_place(fails):
    assert "--root DIR" in fails("data", "cifar100", "--download")


# Train and evaluate


def test_train_says_what_it_will_do_and_what_comes_next(capsys, images, tmp_path):
    folder = tmp_path / "run"
    assert call(*train(images, folder, *sets())) == 0
    said = capsys.readouterr().out
    assert said.startswith("folder: 6 base classes with 36 images, then 3 sessions of 2 classes\n")
    assert "2 epochs of 4 steps: 8 images, 2 views, 1 mixture each\n" in said
    assert "time on this machine (cpu, " in said
    assert said.endswith(f"Trained: {folder}/weights.safetensors\nNext: fscil evaluate {folder}\n")
    kept = {path.name for path in folder.iterdir() if path.is_file()}
    assert kept == {".lock", "config.toml", "run.json", "metrics.jsonl", "weights.safetensors"}
    run = Run.open(folder)
    assert run.finished
    assert run.about()["data"] == str(images.resolve())


def test_a_runs_own_recipe_repeats_it(finished, images, tmp_path):
    assert call("train", finished / "config.toml", "--data", images, "--out", tmp_path / "again", "--quiet") == 0
    first, second = (load_tensors(folder / "weights.safetensors")[0] for folder in (finished, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (tmp_path / "again" / "config.toml").read_bytes() == (finished / "config.toml").read_bytes()


def test_several_seeds_are_several_runs(capsys, images, tmp_path):
    start = train(images, tmp_path, "--seeds", "2", *sets("train.epochs=1", "train.seed=3"))
    assert call(*start) == 0
    runs = [Run.open(tmp_path / f"seed{seed}") for seed in (3, 4)]
    assert [run.config().train.seed for run in runs] == [3, 4]
    assert all(run.finished for run in runs)
    shutil.rmtree(runs[1].folder)
    capsys.readouterr()
    assert call(*start, "--resume") == 0, "the one that is missing is trained"
    assert f"{runs[0].folder} is already trained" in capsys.readouterr().out
    assert runs[1].finished


def test_evaluate_another_method_on_the_same_network(fails, capsys, trained):
    assert call("evaluate", trained, "--method", "alice_plda", "--quiet") == 0
    folder = trained / "evaluate-alice_plda"
    assert f"Written: {folder}/results.json" in capsys.readouterr().out
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert "Made by `fscil evaluate " in table
    assert "--method alice_plda" in table
    assert call("evaluate", trained, "--set", "test.prototypes=all", "--quiet") == 0
    assert len(list(trained.glob("evaluate-alice-*/results.json"))) == 1
    assert not (trained / "results.json").exists()
    error = fails("evaluate", trained, "--method", "cec", "--set", "views.scale=[0.3, 1.0]")
    assert "trained otherwise than this evaluation needs" in error
    command = error.partition("Train one with: ")[2]
    data = Run.open(trained).about()["data"]
    wanted = ["--data", data, "--set", "views.scale=[0.3, 1.0]", "--set", "method=cec", "--out", "…"]
    assert shlex.split(command) == ["fscil", "train", f"{trained}/config.toml", *wanted]


def test_resuming_a_finished_run_does_nothing(capsys, trained):
    before = (trained / "weights.safetensors").stat().st_mtime_ns
    assert call("train", "folder", "--out", trained, "--resume", "--quiet", *sets()) == 0
    assert "already trained" in capsys.readouterr().out
    assert (trained / "weights.safetensors").stat().st_mtime_ns == before


def test_runs_go_to_the_recipes_name_by_default(monkeypatch, images, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert call("train", "folder", "--data", images, "--quiet", *sets("train.epochs=0")) == 0
    assert Run.open(tmp_path / "runs" / "folder").finished


def test_evaluate_prints_the_tables_it_writes(capsys, trained):
    assert call("evaluate", trained, "--quiet") == 0
    said = capsys.readouterr().out
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    assert [walk["shots"] for walk in results["walks"]] == [2, 1]
    for table in run_tables(results):
        assert table.title in said
        assert table.markdown(level=3) in (trained / "table.md").read_text(encoding="utf-8")
        for rows in groups(table).values():
            assert " ".join(rows[0]) in " ".join(said.split())
    for name in ("results.json", "table.md", "predictions.safetensors", "confusion-2-shot.csv", "confusion-1-shot.csv"):
        assert (trained / name).is_file()


def test_evaluate_with_options(capsys, trained):
    assert call("evaluate", trained, "--quiet", "--shots", "2,1", "--draws", "3", "--prototypes", "all") == 0
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    assert [(walk["shots"], walk["draw"]) for walk in results["walks"]] == [(s, d) for s in (2, 1) for d in range(3)]
    assert results["prototypes"] == "all"
    said = capsys.readouterr().out
    assert "mean and 95% interval over 3 seeded draws" in said
    assert "±" in said


def test_evaluate_unknown_images(capsys, trained):
    assert call("evaluate", trained, "--quiet", "--openset") == 0
    said = capsys.readouterr().out
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    assert len(run_tables(results)) == 4
    for table in run_tables(results):
        assert table.title in said
        assert table.markdown(level=3) in (trained / "table.md").read_text(encoding="utf-8")


def test_evaluate_finds_moved_images_when_told(fails, capsys, images, trained, tmp_path):
    moved = shutil.copytree(images, tmp_path / "moved")
    run = Run.open(trained)
    run.note(data=str(tmp_path / "gone"))
    assert "gone" in fails("evaluate", trained, "--quiet")
    assert call("evaluate", trained, "--data", moved, "--quiet") == 0


def test_a_damaged_training_image_is_named_and_left_out(capsys, images, tmp_path):
    root = shutil.copytree(images, tmp_path / "animals")
    path = root / "train" / "bee" / "train3.png"
    path.write_bytes(path.read_bytes()[:100])
    assert call(*train(root, tmp_path / "run", *sets("train.epochs=1"))) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: folder: 1 of 72 train images cannot be decoded")
    assert "train/bee/train3.png" in captured.err
    assert captured.err.count("\n") == 1
    assert "6 base classes with 35 images" in captured.out


def test_ctrl_c_before_the_first_step_can_be_resumed(capsys, monkeypatch, images, tmp_path):
    with monkeypatch.context() as patch:

        def interrupt(*arguments):
            raise KeyboardInterrupt

        patch.setattr(experiments, "describe_training", interrupt)
        assert call(*train(images, tmp_path / "run", *sets())) == 130
    assert "Stopped; nothing is lost. Continue with: fscil train folder --out" in capsys.readouterr().out
    assert call("train", "folder", "--out", tmp_path / "run", "--resume", "--quiet", *sets()) == 0


def test_demo(capsys, monkeypatch, tmp_path):
    """The whole command, with a recipe that is over in a moment and few images of its hundred classes."""
    pixels = np.stack([picture(label, seed) for label in range(100) for seed in range(6)])
    labels = np.repeat(np.arange(100), 6)
    everything = Images.of(ArrayPixels(pixels), labels)
    few = Dataset(everything, everything, tuple(map(str, range(100))), "glyphs")
    small = config.load_recipe(
        "glyphs", ["train.epochs=1", f"views.size={SIZE}", "model.width=1", "model.projection=4", "mixing.repeats=0"]
    )
    monkeypatch.setattr(config, "load_recipe", lambda name: small)
    monkeypatch.setattr(experiments, "dataset_of", lambda config, root, quiet: few)
    assert call("demo", "--out", tmp_path / "demo", "--quiet") == 0
    said = capsys.readouterr().out
    assert "glyphs, 8-step 5-way 5-shot" in said
    assert "glyphs, 8-step 5-way 1-shot" in said
    assert f"All files are in {tmp_path / 'demo'}" in said
    assert call("demo", "--out", tmp_path / "demo", "--quiet") == 0
    assert "already trained" in capsys.readouterr().out


def test_the_version_is_written_down(finished):
    assert Run.open(finished).about()["machine"]["fscil"] == fscil.__version__


# Mistakes


def test_missing_data(fails, tmp_path):
    error = fails(*train(tmp_path / "nowhere", tmp_path / "run"))
    assert "nowhere" in error
    assert not any((tmp_path / "run").iterdir()), "the same command must work once the data is there"


def test_data_not_given(fails, tmp_path):
    assert "--data DIR" in fails("train", "folder", "--out", tmp_path / "run", *sets())


def test_wrong_checksum(fails, tmp_path):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"not what it was")
    error = fails("train", "cifar100", "--data", tmp_path, "--out", tmp_path / "run", "--set", "model.width=2")
    assert "checksum" in error
    assert "eb9058c3a382ffc7106e4002c42a8d85" in error
    assert "fscil data cifar100" in error


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.epoch=3", ['unknown key train.epoch. Did you mean "train.epochs"?']),
        ("lr=3", ['Did you mean "train.lr"?']),
        ("train.epochs=many", ["train.epochs = 'many'", "expected a whole number"]),
        ("train.epochs", ["expected key=value"]),
        ("protocol.shots=[]", ["protocol.shots is empty"]),
        ("method=alise", ['no method named "alise"', 'Did you mean "alice"?', "Installed: alice, finetune"]),
        ("loss.kind=cosfac", ['no loss named "cosfac"', 'Did you mean "cosface"?', "Installed: cosface, arcface"]),
        ("data.name=fodler", ['no data set named "fodler"', 'Did you mean "folder"?', "Installed: cifar100"]),
        (
            "model.backbone=resnet19",
            ['no backbone named "resnet19"', 'Did you mean "resnet18"?', "Installed: resnet18"],
        ),
    ],
)
def test_wrong_settings(fails, images, tmp_path, assignment, words):
    error = fails(*train(images, tmp_path / "run", "--set", assignment))
    for word in words:
        assert word in error
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_unknown_recipe(fails, tmp_path):
    error = fails("train", "cifar10", "--out", tmp_path / "run")
    assert 'Did you mean "cifar100"?' in error
    assert "glyphs" in error


def test_fewer_images_than_shots(fails, images, tmp_path):
    error = fails(*train(images, tmp_path / "run", *sets("protocol.shots=[7]")))
    assert '6 classes have too few training images (first: "gnu" has 6, needed are 7)' in error


def test_overlapping_classes(fails, images, tmp_path):
    order = json.dumps([*NAMES[:7], "ant"], ensure_ascii=False)
    error = fails(*train(images, tmp_path / "run", *sets(f"protocol.order={order}")))
    assert 'names "ant" twice: sessions must not overlap' in error


def test_a_folder_that_holds_another_run(fails, images, trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    error = fails(*train(images, trained, *sets("train.seed=5")))
    assert f"{trained} already holds a run. Continue it with --resume, or choose another folder with --out" in error
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_a_folder_of_other_things(fails, images):
    assert "is not an empty folder" in fails(*train(images, images, *sets()))


def test_resume_with_other_settings(fails, trained):
    error = fails("train", "folder", "--out", trained, "--resume", *sets("train.lr=0.7", "train.seed=5"))
    assert "was begun with other settings: train.lr = 0.05 there, 0.7 here, and 1 more" in error


def test_resume_without_a_run(fails, tmp_path):
    error = fails("train", "folder", "--out", tmp_path / "nothing", "--resume", *sets())
    assert "is not a run folder" in error
    assert f"fscil train … --out {tmp_path / 'nothing'}" in error


def test_evaluate_what_is_no_run(fails, tmp_path):
    assert "is not a run folder" in fails("evaluate", tmp_path)


def test_evaluate_an_unfinished_run(fails, images, tmp_path):
    Run.create(tmp_path / "run", config.load_recipe("folder"), {"data": str(images)})
    assert "training is not finished" in fails("evaluate", tmp_path / "run")


def test_nan_loss(fails, images, tmp_path):
    error = fails(*train(images, tmp_path / "run", *sets("train.lr=1e30", "train.schedule=step")))
    assert "training diverged" in error
    assert "lower train.lr" in error


def test_cub200_without_weights_names_both_ways_on(fails, tmp_path):
    error = fails("train", "cub200", "--data", tmp_path, "--out", tmp_path / "run")
    assert "--set model.weights=" in error
    assert "--set model.backbone=efficientnet_lite0" in error
    assert not any((tmp_path / "run").iterdir())


def test_weights_that_are_not_there(fails, images, tmp_path):
    error = fails(*train(images, tmp_path / "run", *sets("model.weights=resnet18.pth")))
    assert error == "resnet18.pth: no such file of weights."


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_no_cuda(fails, images, trained, tmp_path):
    expected = "--device cuda: this machine has no usable CUDA device. Use --device cpu."
    assert fails(*train(images, tmp_path / "new", "--device", "cuda", *sets())) == expected
    assert not (tmp_path / "new").exists()
    assert fails("evaluate", trained, "--device", "cuda") == expected


@pytest.mark.parametrize("shots", ["abc", "5,x", "0", "-1", "", "5;1"])
def test_shots_that_are_no_numbers(fails, trained, shots):
    error = fails("evaluate", trained, f"--shots={shots}")
    assert error == f'--shots {shots}: expected whole numbers with commas, for instance "5,1".'


def test_prototypes_that_are_unknown(fails, trained):
    assert "expected balanced or all" in fails("evaluate", trained, "--prototypes", "some")


def test_a_damaged_run(fails, trained):
    content = bytearray((trained / "weights.safetensors").read_bytes())
    content[len(content) // 2] ^= 4
    (trained / "weights.safetensors").write_bytes(content)
    assert "its checksum is wrong" in fails("evaluate", trained)


def test_options_that_do_not_exist_are_typers_business(capsys):
    assert call("evaluate", "--frobnicate") == 2
    assert "frobnicate" in capsys.readouterr().err


def test_a_real_process_gives_one_line_too(tmp_path):
    """Not only this one, in which pytest stands behind the streams."""
    command = [sys.executable, "-c", "from fscil.cli import main; main()", "evaluate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path} is not a run folder: it has no run.json.")
    assert done.stderr.count("\n") == 1
