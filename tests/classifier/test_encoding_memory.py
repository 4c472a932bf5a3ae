"""The memory of fit does not grow with the shape of photos: a process with little memory is enough."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

LONG = {"panorama.jpg": (8000, 900), "screenshot.png": (1080, 19000), "wide.png": (4000, 3), "thin.png": (3, 4000)}
MEGABYTES = 512  # beside what is in use once the libraries are loaded; padded to one size, these photos take 12,000

PROGRAM = f"""
import resource, sys
from pathlib import Path
import torch
from fscil import Classifier
import fscil.classifier.fitting

status = Path("/proc/self/status").read_text().splitlines()
used = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + {MEGABYTES} * 2**20, resource.RLIM_INFINITY))
small = ["model.backbone=resnet18", "model.stem=imagenet", "model.width=4", "model.init=scratch"]
classifier = Classifier.fit(sys.argv[1], settings=small, quiet=True)
print({{info.name: info.photos for info in classifier.classes()}})
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited by Linux's RLIMIT_DATA")
def test_elongated_photos_fit_into_little_memory(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = random.integers(0, 256, (60, 80, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    for number, (name, size) in enumerate(LONG.items()):
        Image.new("RGB", size, (40 * number, 90, 160)).save(tmp_path / "ab"[number % 2] / name)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'a': 5, 'b': 5}"
