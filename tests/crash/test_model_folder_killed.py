"""A model folder under kill -9 at every step, and under several real processes at once."""

import shutil
import signal
import subprocess
import sys

import pytest
import torch

from fscil.classifier.model_folder import ModelFolder

# Appends numbered records, saying so after each, until somebody kills it or it has written enough.
APPENDER = """
import sys
from fscil.classifier.model_folder import ModelFolder
folder = ModelFolder(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    folder.append({"writer": sys.argv[2], "number": number, "ballast": "x" * 20_000})
    print(number, flush=True)
"""

# Moves the records into the description, again and again.
COMPACTOR = """
import sys
from fscil.classifier.model_folder import Changed, ModelFolder
def compacted(contents):
    new = [[record["writer"], record["number"]] for record in contents.records]
    return Changed({"compacted": contents.about["compacted"] + new}, contents.snapshot)
folder = ModelFolder(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    folder.compact(compacted)
"""

# Tries an operation once for every step it takes on the disk, on a fresh copy each time, and dies before that step.
STEP_BY_STEP = """
import io, os, shutil, signal, sys
import torch
from pathlib import Path
from fscil.classifier.model_folder import Changed, ModelFolder
from fscil.runtime.files import pack_tensors

def act(folder):
    if sys.argv[2] == "append":
        folder.append({"number": 2})
    elif sys.argv[2] == "compact":
        folder.compact(lambda contents: Changed({"made": "new"}, {"made": torch.tensor(2)}))
    else:
        folder.create({"made": torch.tensor(2)}, {"made": "new"}, {"made": torch.tensor(2)})

def dying(step, left):
    def wrapper(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args, **kwargs)
    return wrapper

place = Path(sys.argv[1])
pack_tensors({"warm": torch.zeros(1)})
for number in range(1000):
    copy = place / str(number)
    if (place / "model").exists():
        shutil.copytree(place / "model", copy)
    child = os.fork()
    if not child:
        left = [number]
        for module, name in ((io, "open"), (os, "open"), (os, "fsync"), (os, "replace"), (os, "unlink")):
            setattr(module, name, dying(getattr(module, name), left))
        act(ModelFolder(copy))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        print(number)
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
"""


def start(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.fixture
def folder(tmp_path):
    folder = ModelFolder(tmp_path / "model")
    folder.create({"made": torch.tensor(1)}, {"compacted": []}, {"made": torch.tensor(1)})
    return folder


@pytest.mark.filterwarnings("ignore::fscil.errors.FscilWarning")  # the last line may well be torn
@pytest.mark.parametrize("lines", [1, 30])
def test_killed_while_appending(folder, lines):
    """Every record that was acknowledged is there; whether the next one is, nobody was told."""
    process = start(APPENDER, folder.path, "a", 1_000_000)
    try:
        go(process)
        said = [int(process.stdout.readline()) for _ in range(lines)]
    finally:
        process.kill()
        rest = process.stdout.read()  # not by communicate, which would miss what readline has read ahead
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    said += [int(line) for line in rest.splitlines()]
    found = [record["number"] for record in folder.read().records]
    assert found == list(range(len(found)))
    assert len(said) <= len(found) <= len(said) + 1
    folder.append({"number": "after"})
    assert [record["number"] for record in ModelFolder(folder.path).read().records] == [*found, "after"]


def test_two_writers_a_compactor_and_a_reader_at_once(folder):
    """No record is lost or doubled, each writer's come in its order, and whoever reads sees a whole model."""
    count = 40
    processes = [start(APPENDER, folder.path, name, count) for name in "ab"] + [start(COMPACTOR, folder.path, "c", 8)]
    seen, follower, version = 0, ModelFolder(folder.path), folder.version()
    try:
        for process in processes:
            go(process)
        while any(process.poll() is None for process in processes):
            contents = ModelFolder(folder.path).read()
            known = len(contents.about["compacted"]) + len(contents.records)
            assert known >= seen
            seen = known
            if (news := follower.records_since(version)) is None:
                version = follower.read().version
            else:
                assert all(record["writer"] in "ab" for record in news)
                follower.version()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    contents = folder.read()
    found = [*contents.about["compacted"], *([record["writer"], record["number"]] for record in contents.records)]
    for name in "ab":
        assert [number for writer, number in found if writer == name] == list(range(count))
    assert len(found) == 2 * count
    assert contents.version.generation == 9
    # Lock files, model.json, and one each of weights, gallery and journal.
    assert len(list(folder.path.iterdir())) == 6


def state(folder):
    contents = folder.read()
    numbers = [record["number"] for record in contents.records]
    return contents.weights["made"].item(), contents.about, contents.snapshot["made"].item(), numbers


@pytest.mark.filterwarnings("ignore::fscil.errors.FscilWarning")
@pytest.mark.parametrize(
    ("act", "after", "fewest"),
    [
        ("append", (1, {"compacted": []}, 1, [0, 1, 2]), 5),
        ("compact", (1, {"made": "new"}, 2, []), 12),
        ("create", (2, {"made": "new"}, 2, []), 16),
    ],
)
def test_killed_before_every_step(folder, act, after, fewest):
    """All of the old model or all of the new one, and the next writer tidies up."""
    before = (1, {"compacted": []}, 1, [0, 1])
    for number in (0, 1):
        folder.append({"number": number})
    place = folder.path.parent
    done = subprocess.run([sys.executable, "-c", STEP_BY_STEP, place, act], capture_output=True, text=True, check=True)
    steps = int(done.stdout)
    assert steps >= fewest
    found = [state(ModelFolder(place / str(number))) for number in range(steps + 1)]
    changes = [found.index(after), len(found) - found.count(after)]
    assert changes[0] == changes[1], "once it is new it stays new"
    assert found[: changes[0]] == [before] * changes[0]
    assert 0 < changes[0] <= steps
    for number in range(steps + 1):
        again = ModelFolder(place / str(number))
        again.append({"number": 9})
        assert state(again)[-1] == [*found[number][-1], 9]
        assert len(list(again.path.iterdir())) == 6


def test_killed_before_every_step_of_a_new_model(tmp_path):
    """No model or a whole one, and what was left does not stand in the way of the next attempt."""
    command = [sys.executable, "-c", STEP_BY_STEP, tmp_path, "create"]
    steps = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    made = [ModelFolder(tmp_path / str(number)).exists() for number in range(steps + 1)]
    assert made == sorted(made)
    assert made.count(False) >= 10
    for number in range(steps + 1):
        again = ModelFolder(tmp_path / str(number))
        if not made[number]:
            again.create({"made": torch.tensor(2)}, {"made": "new"}, {"made": torch.tensor(2)})
        again.append({"number": 0})
        assert state(again) == (2, {"made": "new"}, 2, [0])
        assert len(list(again.path.iterdir())) == 6


def test_a_killed_server_keeps_nobody_out(folder):
    program = (
        "import sys\n"
        "from fscil.classifier.model_folder import ModelFolder\n"
        "with ModelFolder(sys.argv[1]).serving():\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = start(program, folder.path)
    process.kill()
    process.communicate()
    folder.append({"number": 0})
    with folder.serving():
        folder.append({"number": 1})
    assert state(folder)[-1] == [0, 1]


def test_a_copy_of_the_folder_is_a_model(folder, tmp_path):
    folder.append({"number": 0})
    shutil.copytree(folder.path, tmp_path / "copy")
    shutil.rmtree(folder.path)
    assert state(ModelFolder(tmp_path / "copy"))[-1] == [0]
