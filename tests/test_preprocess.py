import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fscil.data.images import Resize
from fscil.preprocess import STATISTICS, Preprocess, normalise


def noise(height, width, seed=0):
    """Of a contrast that leaves a cubic kernel room to overshoot."""
    return np.random.default_rng(seed).integers(60, 196, (height, width, 3), np.uint8)


def resized_extent(height, width, resize, crop):
    """Short side to `resize`, but never below the crop; the long side in proportion, rounded down."""
    short = min(height, width)
    wanted = max(crop, resize or short)
    return int(Fraction(height * wanted, short)), int(Fraction(width * wanted, short))


def with_pillow(image, step):
    height, width = resized_extent(*image.shape[:2], step.resize, step.crop)
    resized = Image.fromarray(image)
    if (height, width) != image.shape[:2]:
        resized = resized.resize((width, height), Image.Resampling[step.interpolation.upper()])
    left, top = (width - step.crop) // 2, (height - step.crop) // 2
    cropped = np.asarray(resized.crop((left, top, left + step.crop, top + step.crop)), np.float64) / 255
    return ((cropped - np.array(step.mean)) / np.array(step.std)).transpose(2, 0, 1)


@pytest.mark.parametrize(
    "step",
    [
        Preprocess(32, 36, "bicubic"),  # CIFAR-100
        Preprocess(84),  # miniImageNet, stored at 92 x 92
        Preprocess(224, 256, "bilinear", *STATISTICS["imagenet"]),  # CUB-200
        Preprocess(224, None, "bicubic", *STATISTICS["imagenet"]),
        Preprocess(16, 8),  # resized to less than the crop: enlarged to the crop
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "shape", [(32, 32), (92, 92), (256, 341), (301, 256), (49, 50), (33, 55), (20, 45), (10, 90), (1, 1)]
)
def test_resize_centre_crop_and_normalise_as_pillow_and_numpy_do(step, shape):
    image = noise(*shape, seed=sum(shape))
    found = step(torch.from_numpy(image[None]), torch.tensor([shape]))
    assert found.shape == (1, 3, step.crop, step.crop)
    assert found.dtype == torch.float32
    tolerance = 1.5 / 255 / min(step.std)
    assert np.abs(found[0].double().numpy() - with_pillow(image, step)).max() < tolerance


def test_a_batch_of_different_sizes_is_each_image_alone():
    step, shapes = Preprocess(24, 28), [(30, 41), (28, 28), (60, 31)]
    pixels = torch.full((3, 60, 41, 3), 255, dtype=torch.uint8)
    for seed, (height, width) in enumerate(shapes):
        pixels[seed, :height, :width] = torch.from_numpy(noise(height, width, seed))
    together = step(pixels, torch.tensor(shapes))
    for seed, shape in enumerate(shapes):
        alone = step(torch.from_numpy(noise(*shape, seed)[None]), torch.tensor([shape]))
        torch.testing.assert_close(together[seed], alone[0], rtol=0, atol=1e-4)


def test_pixels_are_untouched_where_nothing_is_resized():
    image = noise(91, 95)
    found = Preprocess(84, mean=(0.0,) * 3, std=(1.0,) * 3)(torch.from_numpy(image[None]), torch.tensor([[91, 95]]))
    expected = torch.from_numpy(image[3:87, 5:89]) / 255
    torch.testing.assert_close(found[0].permute(1, 2, 0), expected, rtol=0, atol=1e-6)


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 300), st.none() | st.integers(1, 400))
def test_boxes_are_the_exact_ones_and_lie_inside(height, width, crop, resize):
    tall, wide = resized_extent(height, width, resize, crop)
    top, left = (tall - crop) // 2, (wide - crop) // 2
    y, x = Fraction(height, tall), Fraction(width, wide)
    expected = [float(value) for value in (left * x, top * y, (left + crop) * x, (top + crop) * y)]
    found = Preprocess(crop, resize).boxes(torch.tensor([[height, width]]))[0].tolist()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert 0 <= found[0] < found[2] <= width * (1 + 1e-6)
    assert 0 <= found[1] < found[3] <= height * (1 + 1e-6)


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 300), st.integers(0, 100))
def test_sizes_are_those_of_stored_images(height, width, crop, more):
    """Resizing at test time shows the same part as storing at that size and cropping then."""
    stored = Resize(crop + more).target(height, width)
    at_once = Preprocess(crop, crop + more).boxes(torch.tensor([[height, width]]))[0]
    later = Preprocess(crop).boxes(torch.tensor([stored]))[0]
    ratio = torch.tensor([width / stored[1], height / stored[0]] * 2)
    torch.testing.assert_close(at_once, later * ratio, rtol=1e-5, atol=1e-4)


@given(
    st.builds(
        Preprocess,
        crop=st.integers(1, 500),
        resize=st.none() | st.integers(1, 500),
        interpolation=st.sampled_from(["bilinear", "bicubic"]),
        mean=st.tuples(*[st.floats(0, 1)] * 3),
        std=st.tuples(*[st.floats(0.01, 1)] * 3),
    )
)
def test_round_trip_through_json(step):
    assert Preprocess.from_dict(json.loads(json.dumps(step.to_dict()))) == step


def test_statistics():
    """CIFAR-10's, used by the paper's authors on all data; ImageNet's for its weights."""
    assert STATISTICS["cifar10"] == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert STATISTICS["imagenet"] == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (Preprocess(32).mean, Preprocess(32).std) == STATISTICS["cifar10"]


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5), (2, 6, 3, 4, 5)])
def test_normalise_channel_by_channel(shape):
    images = torch.rand(shape)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    found = normalise(images, mean, std)
    for channel in range(3):
        expected = (images.select(-3, channel) - mean[channel]) / std[channel]
        torch.testing.assert_close(found.select(-3, channel), expected)


def test_a_batch_that_a_long_image_made_large_is_taken_in_parts():
    """Each is what it is alone, and not all are floats at once."""
    sizes = torch.tensor([[20, 30]] * 60 + [[1024, 20], [20, 1024]])
    pixels = torch.zeros(len(sizes), 1024, 1024, 3, dtype=torch.uint8)
    for image, (height, width) in zip(pixels, sizes.tolist(), strict=True):
        image[:height, :width] = torch.randint(0, 256, (height, width, 3), generator=torch.manual_seed(width))
    step = Preprocess(16, 18)
    found = step(pixels, sizes)
    for place in (0, 42, 43, 59, 60, 61):
        height, width = sizes[place].tolist()
        alone = step(pixels[place : place + 1, :height, :width], sizes[place : place + 1])[0]
        torch.testing.assert_close(found[place], alone, rtol=0, atol=1e-5)
