"""What decoding costs: little for strips of any length, bounded for large images, and nothing new for ordinary ones."""

import hashlib
import io
import os
import resource
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fscil.data import photos
from fscil.data.images import Resize, decode
from fscil.data.upright import BAND_PIXELS, upright_rgb
from fscil.errors import HugeImageError
from fscil.preprocess import Preprocess

# Decodes a file in a process that may use 512 MB more and 2 CPU-seconds.
LIMITED = """
import resource, sys
from pathlib import Path
from PIL import Image
from fscil.data import photos
from fscil.data.images import Resize
Image.init()
content = Path(sys.argv[1]).read_bytes()
photos.load(Path(sys.argv[2]), Resize(256))  # so that everything is imported
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 512 * 2**20, resource.RLIM_INFINITY))
before = resource.getrusage(resource.RUSAGE_SELF)
photos.load(content, Resize(256))
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
"""


def noise(height, width, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def stretched(pixels, short, filter):
    """The whole image with this short side: what an image is cut from."""
    height, width = pixels.shape[:2]
    size = (short * width // min(height, width), short * height // min(height, width))
    return np.asarray(Image.fromarray(pixels).resize(size, filter))


def input_of(pixels, preprocess):
    return preprocess(torch.tensor(pixels[None]), torch.tensor([pixels.shape[:2]]))[0]


@settings(deadline=None)
@given(st.integers(1, 90), st.floats(1, 4), st.booleans(), st.integers(1, 80), st.sampled_from(["bilinear", "bicubic"]))
def test_ordinary_images_are_the_same_to_the_bit(short, aspect, tall, size, interpolation):
    sides = (short, int(short * aspect))
    pixels = noise(*(sides[::-1] if tall else sides))
    expected = stretched(pixels, size, Image.Resampling[interpolation.upper()])
    found = photos.pixels(pixels, Resize(size, interpolation))
    assert np.array_equal(found, expected)
    assert np.array_equal(photos.load(pixels, Resize(size, interpolation)).pixels, expected)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.integers(5, 60), st.integers(0, 11), st.booleans(), st.integers(8, 40))
def test_the_network_sees_the_same_of_a_long_image(short, aspect, more, tall, size):
    sides = (short, short * aspect + more)
    pixels = noise(*(sides[::-1] if tall else sides))
    preprocess = Preprocess(crop=max(1, size - 3), resize=None, mean=(0, 0, 0), std=(1, 1, 1))
    found = photos.pixels(pixels, Resize(size))
    assert sorted(found.shape[:2])[0] == size
    assert sorted(found.shape[:2])[1] <= 4 * size + 1
    difference = input_of(found, preprocess) - input_of(stretched(pixels, size, Image.Resampling.BILINEAR), preprocess)
    assert difference.abs().max() <= 2 / 255  # the box of Pillow's resize is of single precision


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and limits memory")
@pytest.mark.parametrize("size", [(1, 976), (976, 1), (4000, 3), (1, 60_000), (8000, 900), (1080, 19_000)])
def test_a_strip_costs_little(tmp_path, size):
    Image.new("RGB", size, "red").save(tmp_path / "strip.png")
    Image.new("RGB", (400, 300), "red").save(tmp_path / "small.png")
    command = [sys.executable, "-c", LIMITED, tmp_path / "strip.png", tmp_path / "small.png"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2


def chunk(kind, content):
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")


def png_header(width, height, colour, bits=8):
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([bits, colour, 0, 0, 0])
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + content + chunk(b"IEND", b"")


@pytest.mark.parametrize("colour", [4, 6])
def test_what_takes_too_much_memory_is_refused_before_it_is_decoded(colour):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HugeImageError, match=r"too large \(9000 x 9000 pixels of this kind take more than 512 MiB\)"):
        decode(io.BytesIO(png_header(9000, 9000, colour)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_many_scans_of_a_large_photo_are_too_many():
    file = io.BytesIO()
    Image.new("RGB", (40, 30)).save(file, "JPEG", progressive=True)
    content = bytearray(file.getvalue())
    frame = content.index(b"\xff\xc2")
    content[frame + 5 : frame + 9] = (9000).to_bytes(2, "big") + (9000).to_bytes(2, "big")
    with pytest.raises(HugeImageError, match="too many scans for its size"):
        decode(io.BytesIO(content))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "CMYK", "1", "I;16", "I"])
def test_large_images_are_converted_in_bands_to_the_same(mode):
    """Oracle: small tiles, which are converted at once."""
    height, width = 1050, BAND_PIXELS // 1000
    if mode.startswith("I"):
        wide = np.random.default_rng(0).integers(0, 65536, (height, width))
        image = Image.fromarray(wide.astype(np.uint16 if mode == "I;16" else np.int32))
        expected = np.floor(np.asarray(image).astype(float) / 257 + 0.5).astype(np.uint8)[..., None].repeat(3, 2)
    else:
        channels = {"RGBA": 4, "LA": 2, "CMYK": 4}.get(mode, 1)
        base = noise(height, width, channels)
        image = Image.fromarray(base > 127 if mode == "1" else base, mode="P" if mode == "P" else None)
        if mode == "CMYK":
            image = Image.frombytes("CMYK", (width, height), base.tobytes())
        if mode == "P":
            image.putpalette(noise(256, 3, 1).tobytes())
            image.info["transparency"] = 7
        half = [image.crop((0, top, width, min(top + 600, height))) for top in (0, 600)]
        expected = np.concatenate([np.asarray(upright_rgb(part)) for part in half])
    assert image.mode == mode
    assert np.array_equal(np.asarray(upright_rgb(image)), expected)


def test_the_digest_is_of_the_whole_picture():
    pixels = noise(1100, BAND_PIXELS // 1000)
    expected = hashlib.sha256(f"{pixels.shape[0]}x{pixels.shape[1]};".encode() + pixels.tobytes()).hexdigest()
    assert photos.load(pixels, Resize(32)).digest == expected
