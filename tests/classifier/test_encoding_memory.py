"""The memory of fit does not grow with the shape of photos: a process with little memory is enough."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

LONG = {"panorama.jpg": (8000, 900), "screenshot.png": (1080, 19000), "wide.png": (4000, 3), "thin.png": (3, 4000)}
MEGABYTES = 512  # beside what is in use once the libraries are loaded; padded to one size, these photos take 12,000

LARGE = (6000, 6000)  # pixels: 144 MB decoded
LARGE_MEGABYTES = 800  # for photos of which 8 at once take 1,200; 490 were measured

PROGRAM = """
import os, resource, sys
os.cpu_count = lambda: 8  # as many threads decode
from pathlib import Path
import torch
from fscil import Classifier
import fscil.classifier.fitting

def used(kind):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(kind))

resource.setrlimit(resource.RLIMIT_DATA, (used("VmData") + int(sys.argv[2]) * 2**20, resource.RLIM_INFINITY))
before = used("VmRSS")
small = ["model.backbone=resnet18", "model.stem=imagenet", "model.width=4", "model.init=scratch"]
classifier = Classifier.fit(sys.argv[1], settings=small, quiet=True)
print({info.name: info.photos for info in classifier.classes()})
print((used("VmHWM") - before) >> 20)
"""


limited = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limited by Linux's RLIMIT_DATA")


@limited
def test_elongated_photos_fit_into_little_memory(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = random.integers(0, 256, (60, 80, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    for number, (name, size) in enumerate(LONG.items()):
        Image.new("RGB", size, (40 * number, 90, 160)).save(tmp_path / "ab"[number % 2] / name)
    photos, _ = fitted(tmp_path, MEGABYTES)
    assert photos == "{'a': 5, 'b': 5}"


@limited
def test_many_cores_do_not_need_much_memory(tmp_path):
    for number in range(12):
        path = tmp_path / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", LARGE, (20 * number, 90, 160)).save(path)
    photos, peak = fitted(tmp_path, 10_000)
    assert photos == "{'a': 6, 'b': 6}"
    assert int(peak) < LARGE_MEGABYTES


def fitted(folder, megabytes):
    """What a process with 8 cores and so much memory says: classes, and by how many megabytes its peak grew."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(megabytes)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
