"""fscil predict --watch in a process of its own: photos that come are answered and sorted, until Ctrl-C."""

import csv
import json
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from PIL import Image

from helpers import COMMAND, environment, picture

MODEL = Path(__file__).parents[1] / "fixtures" / "model-schema1" / "model"


@pytest.fixture
def watching(tmp_path, pixel_cache):
    """A process that watches tmp_path/camera, and is killed should it not answer."""
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "camera").mkdir()
    process = subprocess.Popen(
        [*COMMAND, "predict", "model", "camera", "--watch", "--json", "--sort-into", "sorted"],
        cwd=tmp_path,
        env={**environment(pixel_cache), "FSCIL_ENGINE": "torch"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell may have it ignored
    )
    late = threading.Timer(300, process.kill)
    late.start()
    yield process
    late.cancel()
    process.kill()
    process.communicate()


def arrives(folder, name, label):
    """Complete at once, as cameras and browsers do it."""
    Image.fromarray(picture(label, 0)).save(folder / f".{name}", "PNG")
    (folder / f".{name}").rename(folder / name)


def test_photos_that_come_are_answered_until_ctrl_c(watching, tmp_path):
    assert watching.stderr.readline().startswith("watching camera")
    for number in range(3):
        arrives(tmp_path / "camera", f"{number}.png", number)
        said = json.loads(watching.stdout.readline())  # waits for it
        assert said["image"].endswith(f"camera/{number}.png")
    watching.send_signal(signal.SIGINT)
    rest, errors = watching.communicate(timeout=60)
    assert (watching.returncode, rest, errors) == (130, "", "")
    with (tmp_path / "sorted" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["image"]).name for row in rows][:2] == ["0.png", "1.png"]
    assert all((tmp_path / "sorted" / row["file"]).is_file() for row in rows)
