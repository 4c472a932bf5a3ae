"""A run folder keeps one run, lets one process work on it, and says what is wrong with anything else."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fscil.config import to_toml
from fscil.errors import ConfigError, StoreError
from fscil.training.run_folder import Run
from helpers import small_config


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", small_config(), {"data": "somewhere"})


def listing(run):
    return sorted(path.name for path in run.folder.iterdir())


def test_a_new_run_remembers_its_recipe_and_its_origin(run):
    again = Run.open(run.folder)
    assert again.config() == small_config()
    about = again.about()
    assert about["data"] == "somewhere"
    assert about["machine"]["torch"] == torch.__version__
    assert not again.finished


def test_an_empty_folder_will_do(tmp_path):
    (tmp_path / "run").mkdir()
    Run.create(tmp_path / "run", small_config(), {})
    assert Run.open(tmp_path / "run").config() == small_config()


def test_a_folder_that_holds_another_run_is_left_alone(run):
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(StoreError, match=r"already holds a run.*--resume.*--out"):
        Run.create(run.folder, small_config("train.seed=1"), {})
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("mine")
    with pytest.raises(StoreError, match="not an empty folder"):
        Run.create(tmp_path / "letters", small_config(), {})
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]
    with pytest.raises(StoreError, match="not an empty folder"):
        Run.create(tmp_path / "letters" / "dear.txt", small_config(), {})


def test_a_folder_without_a_run_cannot_be_opened(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(StoreError, match=r"not a run folder.*fscil train"):
            Run.open(folder)


def test_a_newer_run_is_not_opened(run):
    run.note(schema=99)
    with pytest.raises(StoreError, match="newer fscil"):
        Run.open(run.folder)


def test_finished_means_weights_and_the_word(run):
    run.save("checkpoint", {"x": torch.ones(1)}, {"step": 1})
    run.save("best", {"x": torch.ones(1)}, {})
    run.finish({"x": torch.arange(3)}, {"backbone": "resnet18"})
    assert run.finished
    assert not run.has("checkpoint")
    assert not run.has("best")
    run.weights.unlink()
    assert not run.finished


def test_a_kept_state_comes_back(run):
    assert run.load("checkpoint") is None
    run.save("checkpoint", {"x": torch.arange(3)}, {"step": 4})
    tensors, about = run.load("checkpoint")
    assert tensors["x"].tolist() == [0, 1, 2]
    assert about == {"step": 4}


def test_rewind_forgets_what_comes_after_and_mends_a_torn_line(run):
    for step in (1, 2, 3, 4):
        run.log(step=step, loss=1.0 / step)
    metrics = run.folder / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"step": 5, "lo')
    run.rewind(2)
    run.log(step=3, loss=9.0)
    assert len(metrics.read_text().splitlines()) == 3
    assert run.metrics() == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 9.0},
    ]


# One process at a time

HOLD = """
import sys
from pathlib import Path
from pathlib import Path
from fscil.training.run_folder import Run
with Run.open(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(run):
    """Another process that has the run, until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def lock(run):
    with run.locked():
        pass


def test_a_run_in_use_is_refused(run, holder):
    with pytest.raises(StoreError, match="another process is working on this run"):
        lock(run)
    holder.communicate("")
    lock(run)


def test_a_killed_process_leaves_no_lock(run, holder):
    holder.kill()
    holder.wait()
    lock(run)


def test_two_writers_in_one_process_are_two(run):
    with run.locked(), pytest.raises(StoreError, match="another process"):
        lock(Run.open(run.folder))


def test_what_a_killed_writer_left_is_cleared_away_by_the_next_one(run):
    (run.folder / ".checkpoint.safetensors.abc123.part").write_bytes(b"half")
    lock(run)
    assert listing(run) == [".lock", "config.toml", "run.json"]


def test_a_lock_that_cannot_be_made(run):
    (run.folder / ".lock").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        lock(run)


# A run that could not begin


def test_an_unbegun_run_makes_room_for_the_next(run):
    lock(run)
    run.discard_unbegun()
    assert listing(run) == []
    Run.create(run.folder, small_config("train.seed=1"), {})


@pytest.mark.parametrize("begin", ["log", "checkpoint", "finish"])
def test_a_run_that_has_begun_is_kept(run, begin):
    if begin == "log":
        run.log(step=1)
    elif begin == "checkpoint":
        run.save("checkpoint", {"x": torch.ones(1)}, {})
    else:
        run.finish({"x": torch.ones(1)}, {})
    before = listing(run)
    run.discard_unbegun()
    assert listing(run) == before


# Damage, and creations that were killed


@pytest.mark.parametrize("name", ["config.toml", "run.json"])
def test_every_flipped_bit_is_noticed(run, name):
    path = run.folder / name
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 37):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises((StoreError, ConfigError)):
            (run.config if name == "config.toml" else run.about)()


def test_files_of_older_versions_have_no_checksum(run):
    (run.folder / "config.toml").write_text(to_toml(small_config("train.seed=3")))
    (run.folder / "run.json").write_text('{"schema": 1, "finished": false, "data": "there"}')
    again = Run.open(run.folder)
    assert again.config() == small_config("train.seed=3")
    assert again.about()["data"] == "there"


# Dies before the step whose number it is given.
KILLED = """
import io, os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from fscil.training.run_folder import Run
from helpers import small_config
Run.create(Path(sys.argv[1]) / "warm", small_config(), {})
for number in range(1000):
    child = os.fork()
    if not child:
        left = [number]
        def dying(step):
            def wrapper(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(*args, **kwargs)
            return wrapper
        for name in ("open", "mkdir", "fsync", "replace", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
        Run.create(Path(sys.argv[1]) / str(number), small_config(), {})
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(number)
        break
"""


@pytest.mark.skipif(sys.platform == "win32", reason="cannot fork")
def test_a_creation_that_was_killed_can_be_repeated(tmp_path):
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", KILLED, tmp_path, tests]
    steps = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert steps >= 8
    for number in range(steps + 1):
        folder = tmp_path / str(number)
        if (folder / "run.json").exists():
            assert Run.open(folder).config() == small_config()
            run = Run.open(folder)
        else:
            run = Run.create(folder, small_config("train.seed=1"), {})
        lock(run)
        assert listing(run) == [".lock", "config.toml", "run.json"]


def test_a_recipe_somebody_put_there_is_left_alone(tmp_path):
    path = tmp_path / "run" / "config.toml"
    path.parent.mkdir()
    path.write_text("[train]\nepochs = 3\n")
    with pytest.raises(StoreError, match="not an empty folder"):
        Run.create(path.parent, small_config(), {})
    assert path.read_text() == "[train]\nepochs = 3\n"
