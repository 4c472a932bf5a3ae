"""Sizes and scans from headers alone, against what Pillow reads and writes."""

import io
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fscil.data.image_headers import MAX_SCANS, image_size, scan_count
from fscil.data.images import FORMATS, decode
from fscil.errors import BadImageError, HugeImageError


def stored(kind, width, height, mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, (width, height), 200).save(file, kind, **options)
    return file.getvalue()


def with_scans_repeated(content, times):
    """A progressive JPEG with its last scan repeated."""
    start = content.rindex(b"\xff\xda")
    return content[:-2] + content[start:-2] * times + content[-2:]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (640, 481), (3, 700), (5000, 2)])
def test_the_size_is_that_of_the_decoded_image(kind, size):
    width, height = size
    assert image_size(stored(kind, width, height)) == (height, width)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {"lossless": True}),
        ("RGBA", {"lossless": True}),
        ("RGBA", {}),
        ("RGB", {"exif": b"Exif\0\0" + b"x" * 50}),
    ],
)
def test_the_kinds_of_webp(mode, options):
    assert image_size(stored("WEBP", 640, 481, mode, **options)) == (481, 640)


def test_the_size_of_a_jpeg_with_a_thumbnail_is_that_of_the_photo():
    thumbnail = stored("JPEG", 160, 120, progressive=True)
    assert image_size(stored("JPEG", 640, 480, exif=b"Exif\0\0" + thumbnail)) == (480, 640)


def test_a_bitmap_from_top_to_bottom():
    content = bytearray(stored("BMP", 6, 4))
    content[22:26] = (-4).to_bytes(4, "little", signed=True)
    assert image_size(bytes(content)) == (4, 6) == decode(io.BytesIO(content)).shape[:2]


@given(st.binary(max_size=200), st.sampled_from([b"", *(stored(kind, 40, 30)[:40] for kind in FORMATS)]))
def test_any_bytes_have_a_size_or_none(content, start):
    found = image_size(start + content)
    assert found is None or min(found) >= 0
    assert scan_count(start + content) >= 0


def test_scans_are_counted_without_those_of_thumbnails_and_of_what_follows():
    thumbnail = stored("JPEG", 16, 16, progressive=True)
    progressive = stored("JPEG", 640, 480, progressive=True)
    scans = scan_count(progressive)
    assert 2 < scans <= MAX_SCANS
    assert scan_count(stored("JPEG", 640, 480)) == 1
    assert scan_count(stored("JPEG", 640, 480, progressive=True, exif=b"Exif\0\0" + thumbnail)) == scans
    assert scan_count(progressive + b"\xff\xda" * 1000) == scans  # such as the film of a moving photo
    assert scan_count(with_scans_repeated(progressive, 5)) == scans + 5
    assert scan_count(stored("PNG", 640, 480)) == 0


def test_noise_has_no_scans_of_its_own():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8))
    counts = []
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 1}):
        file = io.BytesIO()
        noise.save(file, "JPEG", **options)
        counts.append(scan_count(file.getvalue()))
    assert counts[0] == counts[2] == 1
    assert counts[1] == scan_count(stored("JPEG", 300, 300, progressive=True))


def test_a_photo_with_thousands_of_scans_is_rejected_before_it_is_decoded():
    content = with_scans_repeated(stored("JPEG", 8000, 8000, progressive=True, quality=30), 2000)
    assert len(content) < 2**20
    began = time.process_time()
    with pytest.raises(HugeImageError, match="scans"):
        decode(io.BytesIO(content))
    assert time.process_time() - began < 2


def test_a_progressive_photo_decodes_as_before():
    content = stored("JPEG", 64, 48, progressive=True)
    assert decode(io.BytesIO(content)).shape == (48, 64, 3)
    with pytest.raises(BadImageError):
        decode(io.BytesIO(content[:200]))
