"""A grid on a local Ray cluster of two workers: the results of the local engine, also when a worker is lost."""

import hashlib
import json

import pytest

from helpers import call, sets, write_images

pytest.importorskip("ray", reason="the extra ray is not installed")

QUICK = ("train.epochs=1", "incremental.steps=1", "protocol.draw=0")
PLUGIN = """
import os
import signal
from pathlib import Path

from fscil.methods import METHODS, Alice


@METHODS.register("mortal")
class Mortal(Alice):
    '''In a worker of Ray its process is lost once, between two sessions.'''

    sessions = 0

    def learn(self, new):
        mark = Path(os.environ["MORTAL_MARK"])
        Mortal.sessions += 1
        if not mark.exists() and Mortal.sessions == 5:  # in the second walk
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        super().learn(new)


@METHODS.register("broken")
class Broken(Alice):
    def learn(self, new):
        raise ZeroDivisionError("a mistake")
"""


def files(out):
    kept = [*out.glob("cells/*/results.json"), *out.glob("cells/**/*.safetensors"), *out.glob("base/*/*.safetensors")]
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def test_a_lost_worker_changes_no_byte(tmp_path, monkeypatch, capsys):
    photos = write_images(tmp_path / "photos")
    plugin, mark = tmp_path / "plugin.py", tmp_path / "mark"
    plugin.write_text(PLUGIN)
    monkeypatch.setenv("MORTAL_MARK", str(mark))
    monkeypatch.setenv("RAY_ADDRESS", "local")  # a cluster of the test's own

    def bench(out, *more):
        options = ["--data", photos, "--methods", "mortal,finetune,broken", "--shots", "2", "--draws", "2"]
        return call("bench", "folder", *options, "--plugin", plugin, "--out", out, "--quiet", *sets(*QUICK), *more)

    assert bench(tmp_path / "ray", "--engine", "ray") == 1
    told = capsys.readouterr()
    assert "broken-seed0 failed: ZeroDivisionError: a mistake" in told.out
    assert mark.exists(), "a worker was lost"
    assert bench(tmp_path / "local") == 1
    assert files(tmp_path / "ray") == files(tmp_path / "local")
    about = json.loads((tmp_path / "ray/cells/mortal-seed0/provenance.json").read_text())
    assert "--engine ray" in about["walks"][0]["command"]


def test_an_unknown_engine(capsys):
    assert call("bench", "glyphs", "--engine", "spark") == 2
    assert "--engine spark: expected local or ray" in capsys.readouterr().err
