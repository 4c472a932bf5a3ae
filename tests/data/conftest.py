"""Small pictures, and the folder of real data where there is one."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture():
    """picture(path, height, width, seed) writes an image of noise and returns its pixels."""

    def write(path, height=6, width=8, seed=0, **options):
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **options)
        return pixels

    return write


@pytest.fixture(scope="session")
def shared():
    """real(name) is the path of real data, or skips the test."""
    root = Path(os.environ.get("FSCIL_SHARED") or Path(__file__).parents[3] / "shared")

    def real(name):
        path = root / "data" / name
        if not path.exists():
            pytest.skip(f"no {name} (FSCIL_SHARED names the folder of real data)")
        return path

    return real
