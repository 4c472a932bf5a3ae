"""Crop and resize against Pillow's resize with box=, which rounds to 8 bits after each of its two passes.

That rounding is why levels may differ by a little more than 1. A cubic kernel overshoots at edges, and Pillow cuts that
off between the passes; which comes first is its own affair, so the images compared in one call leave room to overshoot,
and images of full contrast are compared with the two passes called one after the other.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fscil.resample import axis_weights, crop_resize, crop_resize_one_by_one

LEVELS = {"bilinear": 1.5, "bicubic": 2.0}
KINDS = sorted(LEVELS)


def noise(height, width, seed=0, low=60, top=196):
    return np.random.default_rng(seed).integers(low, top, (height, width, 3), np.uint8)


def in_one_call(image, box, size, kind):
    left, top, right, bottom = box
    upright = (min(left, right), top, max(left, right), bottom)
    resized = Image.fromarray(image).resize((size, size), Image.Resampling[kind.upper()], upright)
    return np.asarray(ImageOps.mirror(resized) if right < left else resized, np.float64)


def pass_by_pass(image, box, size, kind):
    """Columns first, then rows."""
    left, top, right, bottom = box
    kernel, height = Image.Resampling[kind.upper()], image.shape[0]
    narrow = Image.fromarray(image).resize((size, height), kernel, (min(left, right), 0, max(left, right), height))
    resized = narrow.resize((size, size), kernel, (0, top, size, bottom))
    return np.asarray(ImageOps.mirror(resized) if right < left else resized, np.float64)


def padded(images, fill):
    sizes = np.array([image.shape[:2] for image in images])
    canvas = np.full((len(images), *sizes.max(0), 3), fill, np.uint8)
    for place, image in zip(canvas, images, strict=True):
        place[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(canvas), torch.from_numpy(sizes)


def check(images, boxes, size, kind, oracle=in_one_call, fill=255):
    pixels, sizes = padded(images, fill)
    found = crop_resize(pixels, sizes, torch.tensor(boxes), size, kind)
    assert found.shape == (len(images), 3, size, size)
    assert found.dtype == torch.float32
    assert found.min() >= 0
    assert found.max() <= 1
    levels = 255 * found.permute(0, 2, 3, 1).double().numpy()
    for result, image, box in zip(levels, images, boxes, strict=True):
        assert np.abs(result - oracle(image, box, size, kind)).max() < LEVELS[kind]


@pytest.mark.parametrize("oracle", [in_one_call, pass_by_pass])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "height", "width"),
    [(32, 32, 32), (32, 36, 50), (84, 92, 92), (84, 60, 84), (224, 256, 341), (224, 100, 90), (8, 200, 31)],
)
def test_whole_parts_and_mirrored_parts_at_every_size(size, height, width, kind, oracle):
    boxes = [
        (0.0, 0.0, width, height),
        (width, 0.0, 0.0, height),  # mirrored
        (3.0, 5.0, width - 4.0, height - 1.0),
        (width - 4.0, 5.0, 3.0, height - 1.0),
        (1.25, 2.5, 0.6 * width, 0.8 * height),  # between pixels
        (width / 2, height / 2, width / 2 + 2, height / 2 + 3),  # enlarged a lot
    ]
    boxes = [tuple(map(float, box)) for box in boxes]
    contrast = (60, 196) if oracle is in_one_call else (0, 256)
    check([noise(height, width, seed, *contrast) for seed in range(len(boxes))], boxes, size, kind, oracle)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", [0, 255])
def test_padding_does_not_leak(kind, fill):
    """Dark images of different sizes on a white canvas, and bright ones on black; boxes end at the true edge."""
    shapes = [(20, 70), (64, 64), (70, 9), (1, 1), (33, 47)]
    images = [noise(*shape, seed, 0, 30) for seed, shape in enumerate(shapes)]
    if fill == 0:
        images = [255 - image for image in images]
    boxes = [(float(width), 0.0, 0.0, float(height)) for height, width in shapes]
    check(images, boxes, 32, kind, pass_by_pass, fill)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(KINDS))
def test_any_box_of_any_image(data, kind):
    count = data.draw(st.integers(1, 3))
    images, boxes = [], []
    for seed in range(count):
        height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
        images.append(noise(height, width, seed, 0, 256))
        left, right = sorted(data.draw(st.floats(0, width, width=32)) for _ in range(2))
        top, bottom = sorted(data.draw(st.floats(0, height, width=32)) for _ in range(2))
        if right - left < 0.5:
            left, right = 0.0, float(width)
        if bottom - top < 0.5:
            top, bottom = 0.0, float(height)
        boxes.append((right, top, left, bottom) if data.draw(st.booleans()) else (left, top, right, bottom))
    check(images, boxes, data.draw(st.integers(1, 20)), kind, pass_by_pass)


def test_nothing_changes_where_nothing_is_resized():
    image = noise(32, 32)
    found = crop_resize(torch.from_numpy(image[None]), torch.tensor([[32, 32]]), torch.tensor([[0.0, 0, 32, 32]]), 32)
    assert torch.equal(found[0].permute(1, 2, 0), torch.from_numpy(image) / 255)


def test_samples_do_not_affect_each_other():
    images = [noise(20, 30, 1), noise(12, 9, 2), noise(31, 8, 3)]
    boxes = torch.tensor([[2.0, 3, 20, 18], [9, 0, 0, 12], [1, 1, 7, 30]])
    pixels, sizes = padded(images, 128)
    together = crop_resize(pixels, sizes, boxes, 16, "bicubic")
    for row, image in enumerate(images):
        alone = crop_resize(*padded([image], 0), boxes[row : row + 1], 16, "bicubic")
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)


def test_an_empty_batch():
    empty = crop_resize(torch.empty(0, 8, 8, 3, dtype=torch.uint8), torch.empty(0, 2).long(), torch.empty(0, 4), 4)
    assert empty.shape == (0, 3, 4, 4)


def test_channels_last_in_memory():
    pixels, sizes = padded([noise(9, 9), noise(9, 9, 1)], 0)
    found = crop_resize(pixels, sizes, torch.tensor([[0.0, 0, 9, 9]] * 2), 5)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_does_not_coarsen_pixels(kind):
    pixels, sizes = padded([noise(40, 30), noise(22, 37, 1)], 0)
    boxes = torch.tensor([[0.0, 0, 30, 40], [30.5, 2, 1, 20]])
    expected = crop_resize(pixels, sizes, boxes, 16, kind)
    with torch.autocast("cpu", torch.bfloat16):
        found = crop_resize(pixels, sizes, boxes, 16, kind)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@given(st.integers(1, 30), st.integers(0, 5), st.integers(1, 25), st.data(), st.sampled_from(KINDS))
def test_weights_sum_to_one_and_stay_off_the_padding(length, padding, out, data, kind):
    start = data.draw(st.integers(0, 16 * length - 8)) / 16
    end = data.draw(st.integers(int(16 * start) + 8, 16 * length)) / 16
    ends, extent = torch.tensor([[start], [end]]), torch.tensor([length])
    weights = axis_weights(ends[0], ends[1], extent, out, length + padding, kind)
    assert weights.shape == (1, out, length + padding)
    torch.testing.assert_close(weights.sum(2), torch.ones(1, out))
    assert not weights[:, :, length:].any()
    mirrored = axis_weights(ends[1], ends[0], extent, out, length + padding, kind)
    torch.testing.assert_close(mirrored, weights.flip(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "height", "width"), [(32, 32, 32), (84, 92, 92), (84, 60, 84), (224, 256, 341), (8, 200, 31)]
)
def test_one_by_one_is_cropping_and_resizing_by_pillow(size, height, width):
    boxes = [(0, 0, width, height), (width, 0, 0, height), (3, 5, width - 4, height - 1), (width - 4, 5, 3, height - 1)]
    boxes.append((width // 2, height // 2, width // 2 + 2, height // 2 + 3))
    images = [noise(height, width, seed, 0, 256) for seed in range(len(boxes))]
    found = crop_resize_one_by_one(torch.from_numpy(np.stack(images)), torch.tensor(boxes).float(), size)
    assert found.shape == (len(boxes), 3, size, size)
    assert found.is_contiguous()
    for result, image, (left, top, right, bottom) in zip(found, images, boxes, strict=True):
        box = Image.fromarray(image).crop((min(left, right), top, max(left, right), bottom))
        resized = box.resize((size, size), Image.Resampling.BILINEAR)
        expected = np.asarray(ImageOps.mirror(resized) if right < left else resized, np.float64)
        assert np.abs(255 * result.permute(1, 2, 0).double().numpy() - expected).max() < 1.01


def test_one_by_one_agrees_with_all_at_once_away_from_the_border():
    image, box = noise(64, 80), torch.tensor([[72.0, 8, 8, 56]])
    pixels, sizes = torch.from_numpy(image[None]), torch.tensor([[64, 80]])
    together = crop_resize(pixels, sizes, box, 24)
    alone = crop_resize_one_by_one(pixels, box, 24)
    inner = (..., slice(2, -2), slice(2, -2))
    assert (together[inner] - alone[inner]).abs().max() < 1.5 / 255
