"""fscil predict --out FILE: killed, stopped, resumed, and in the end the same bytes as without any interruption."""

import csv
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from helpers import call, environment, picture

MODEL = Path(__file__).parents[1] / "fixtures" / "model-schema1" / "model"
PHOTOS = 40  # two batches of 16, and a rest

# The command line, which gets a signal when it has recorded one batch of answers.
INTERRUPTED = """
import os, signal, sys
from fscil.cli import main
from fscil.cli.record import Record
add = Record.add
def recording(self, rows):
    add(self, rows)
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
Record.add = recording
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
main()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """camera: photos; model; whole.csv: the table that nobody interrupted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSCIL_ENGINE", "torch")
    shutil.copytree(MODEL, "model")
    Path("camera").mkdir()
    for number in range(PHOTOS):
        Image.fromarray(picture(number % 7, number)).save(f"camera/{number:02}.png")
    assert call("predict", "model", "camera", "--top", 3, "--csv", "-o", "whole.csv") == 0
    return tmp_path


def interrupted(folder, cache, name=signal.SIGKILL):
    """One batch of answers is recorded; returns what was said."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "predict", "model", "camera", "--top", "3", "-o", "table.csv"],
        env={**environment(cache), "SIGNAL": str(int(name))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == (-name if name == signal.SIGKILL else 130), done.stderr
    assert not (folder / "table.csv").exists()
    return done.stderr


def resumed(*more, code=0):
    assert call("predict", "model", "camera", "-o", "table.csv", *(more or ("--top", 3))) == code
    assert not Path("table.csv.part").exists()
    return Path("table.csv").read_bytes()


def test_it_is_what_csv_prints(folder, capsys):
    capsys.readouterr()
    assert call("predict", "model", "camera", "--top", 3, "--csv", "--quiet") == 0
    assert capsys.readouterr().out.encode() == (folder / "whole.csv").read_bytes()


@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGINT])
def test_what_was_answered_is_not_predicted_again(folder, pixel_cache, capsys, name):
    said = interrupted(folder, pixel_cache, name)
    assert ("the same command continues" in said) == (name == signal.SIGINT)
    capsys.readouterr()
    assert resumed() == (folder / "whole.csv").read_bytes()
    assert "16 photos answered before" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_part_of_a_batch_is_cut_off(folder, pixel_cache, capsys, share):
    """Of a batch that was being written when the power went off, whole lines may be there, and a part of one."""
    interrupted(folder, pixel_cache)
    part = folder / "table.csv.part"
    header, batch = part.read_bytes().split(b"\n", 1)
    part.write_bytes(header + b"\n" + batch + batch[: int(share * len(batch))])
    capsys.readouterr()
    assert resumed() == (folder / "whole.csv").read_bytes()
    assert "16 photos answered before" in capsys.readouterr().err


def test_a_photo_that_has_changed_is_predicted_again(folder, pixel_cache, capsys):
    interrupted(folder, pixel_cache)
    Image.fromarray(picture(3, 1000)).save("camera/03.png")
    capsys.readouterr()
    rows = list(csv.DictReader(resumed().decode().splitlines()))
    assert "15 photos answered before" in capsys.readouterr().err
    assert call("predict", "model", "camera/03.png", "--csv") == 0
    (alone,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert rows[3]["label"] == alone["label"]
    assert float(rows[3]["score"]) == pytest.approx(float(alone["score"]), abs=1e-5)


@pytest.mark.parametrize("change", ["model", "options"])
def test_other_answers_are_made_anew(folder, pixel_cache, capsys, change):
    interrupted(folder, pixel_cache)
    if change == "model":
        assert call("enroll", "model", "new", "camera/05.png") == 0
    more = ("--top", 2 if change == "options" else 3)
    capsys.readouterr()
    found = resumed(*more)
    said = capsys.readouterr().err
    assert "another model or other options" in said
    assert "answered before" not in said
    assert call("predict", "model", "camera", "-o", "anew.csv", *more) == 0
    assert found == Path("anew.csv").read_bytes() != (folder / "whole.csv").read_bytes()


def test_photos_that_cannot_be_read_have_their_row(folder, pixel_cache, capsys):
    Path("camera/04.png").write_text("no picture")
    interrupted(folder, pixel_cache)
    rows = list(csv.DictReader(resumed(code=1).decode().splitlines()))
    assert [row["image"] for row in rows if row["error"]] == ["camera/04.png"]
    assert "1 cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["table.csv", "table.csv.part"])
def test_files_of_others_stay(folder, capsys, name):
    Path(name).write_text("mine\n1\n")
    assert call("predict", "model", "camera", "-o", "table.csv") == 1
    assert f"{name}: " in capsys.readouterr().err
    assert Path(name).read_text() == "mine\n1\n"


@pytest.mark.parametrize(
    ("options", "hint"),
    [(("--csv", "table.csv"), "--csv -o table.csv"), (("-o", "table.csv", "--watch"), "leave out")],
)
def test_what_cannot_be_asked_says_how_to_ask(folder, capsys, options, hint):
    assert call("predict", "model", "camera", *options) == 2
    assert hint in capsys.readouterr().err
