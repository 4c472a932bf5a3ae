import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy import stats

from fscil import augment
from fscil.augment import (
    Views,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    luminance,
    random_boxes,
)
from fscil.preprocess import Preprocess

UNLIKELY = 1e-4  # a statistic rarer than this, under a fixed seed, is a defect


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Crop boxes

PAPER = {"scale": (0.2, 1.0), "ratio": (3 / 4, 4 / 3)}


def central(height, width, ratio):
    """The largest box in the middle whose aspect is within ratio."""
    wide, high = width, height
    if width / height > ratio[1]:
        wide = max(1, round(height * ratio[1]))
    elif width / height < ratio[0]:
        high = max(1, round(width / ratio[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return [left, top, left + wide, top + high]


def naive_box(height, width, scale, ratio, random):
    """One box by the definition, attempt after attempt."""
    for _ in range(10):
        area = height * width * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.integers(0, width - wide + 1), random.integers(0, height - high + 1)
            return [left, top, left + wide, top + high]
    return central(height, width, ratio)


@settings(max_examples=200)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)).map(sorted),
    st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)).map(sorted),
    st.integers(0, 2**31),
)
def test_boxes_keep_the_definition(height, width, scale, ratio, seed):
    boxes = random_boxes(torch.tensor([[height, width]] * 8), tuple(scale), tuple(ratio), 0.5, seeded(seed))
    assert torch.equal(boxes, boxes.round())
    for left, top, right, bottom in boxes.tolist():
        left, right = min(left, right), max(left, right)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        wide, high = right - left, bottom - top
        slack = 1e-3
        fits = (
            (wide - 0.5) * (high - 0.5) <= scale[1] * height * width + slack
            and (wide + 0.5) * (high + 0.5) >= scale[0] * height * width - slack
            and (wide - 0.5) / (high + 0.5) <= ratio[1] + slack
            and (wide + 0.5) / (high - 0.5) >= ratio[0] - slack
        )
        # Halves are rounded the one way or the other.
        middle = central(height, width, ratio)
        assert fits or np.abs(np.array([left, top, right, bottom]) - middle).max() <= 1


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 50), (50, 1)])
def test_an_extreme_image_gives_its_middle(height, width):
    """No box of at least a fifth of the area fits, so all are the largest central one."""
    boxes = random_boxes(torch.tensor([[height, width]] * 20), **PAPER, generator=seeded())
    assert boxes.tolist() == [central(height, width, PAPER["ratio"])] * 20


def test_an_image_within_the_ratio_falls_back_to_all_of_it():
    boxes = random_boxes(torch.tensor([[30, 33]] * 5), (2.0, 2.0), PAPER["ratio"], generator=seeded())
    assert boxes.tolist() == [[0, 0, 33, 30]] * 5


def test_area_aspect_and_place_are_uniform():
    """Boxes of up to half the area always fit, so that nothing is drawn again."""
    side = 4000
    boxes = random_boxes(torch.tensor([[side, side]] * 4000), (0.2, 0.5), PAPER["ratio"], 0.0, seeded(1)).double()
    left, top, right, bottom = boxes.T.numpy()
    wide, high = right - left, bottom - top
    assert stats.kstest(wide * high / side**2, "uniform", (0.2, 0.3)).pvalue > UNLIKELY
    low, up = map(math.log, PAPER["ratio"])
    assert stats.kstest(np.log(wide / high), "uniform", (low, up - low)).pvalue > UNLIKELY
    assert stats.kstest(left / (side - wide + 1), "uniform").pvalue > UNLIKELY
    assert stats.kstest(top / (side - high + 1), "uniform").pvalue > UNLIKELY


@pytest.mark.parametrize(("height", "width"), [(32, 32), (84, 84), (256, 341)])
def test_boxes_are_distributed_as_the_naive_ones(height, width):
    """With the paper's scale many attempts do not fit: the one that counts must be the first that does."""
    count, random = 4000, np.random.default_rng(2)
    found = random_boxes(torch.tensor([[height, width]] * count), **PAPER, generator=seeded(2)).numpy()
    naive = np.array([naive_box(height, width, **PAPER, random=random) for _ in range(count)])
    for measure in (
        lambda box: box[:, 0],
        lambda box: box[:, 3],
        lambda box: (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]),
        lambda box: (box[:, 2] - box[:, 0]) / (box[:, 3] - box[:, 1]),
    ):
        assert stats.ks_2samp(measure(found), measure(naive)).pvalue > UNLIKELY


@pytest.mark.parametrize("flip", [0.0, 0.5, 0.8, 1.0])
def test_share_of_mirrored_boxes(flip):
    boxes = random_boxes(torch.tensor([[50, 50]] * 4000), **PAPER, flip=flip, generator=seeded(3))
    mirrored = int((boxes[:, 2] < boxes[:, 0]).sum())
    assert stats.binomtest(mirrored, 4000, flip).pvalue > UNLIKELY


# Colours

amounts = st.lists(st.floats(0, 2, width=32), min_size=3, max_size=3).map(lambda values: torch.tensor(values))


def pictures(seed, count=3, size=5):
    """(count, 3, size, size) of 8-bit colours, some of them gray, black, white or pure."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, size, size))
    images[:, :, 0, 0] = 0
    images[:, :, 0, 1] = 255
    images[:, :, 0, 2] = images[:, :1, 0, 2]
    images[:, :, 1, 0] = [255, 0, 0]
    images[:, :, 1, 1] = [0, 255, 255]
    images[:, 1, 1, 2] = images[:, 0, 1, 2]  # two channels equal
    images[:, 2, 1, 3] = images[:, 1, 1, 3]
    return torch.from_numpy(images).float() / 255


@given(st.integers(0, 2**31), st.lists(st.floats(-0.5, 0.5, width=32), min_size=3, max_size=3))
def test_hue_as_colorsys_turns_it(seed, shifts):
    images = pictures(seed)
    found = adjust_hue(images, torch.tensor(shifts).view(3, 1, 1, 1))
    for image, result, shift in zip(images.tolist(), found.tolist(), shifts, strict=True):
        for y in range(5):
            for x in range(5):
                hue, saturation, value = colorsys.rgb_to_hsv(*(image[channel][y][x] for channel in range(3)))
                expected = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
                assert [result[channel][y][x] for channel in range(3)] == pytest.approx(expected, abs=2e-5)


@given(st.integers(0, 2**31), st.floats(-2, 2, width=32))
def test_hue_keeps_value_and_chroma(seed, shift):
    images = pictures(seed)
    found = adjust_hue(images, torch.full((3, 1, 1, 1), shift))
    torch.testing.assert_close(found.amax(1), images.amax(1), rtol=0, atol=0)
    torch.testing.assert_close(found.amin(1), images.amin(1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("adjust", "enhance", "levels"),
    [
        (adjust_brightness, ImageEnhance.Brightness, 1.0),
        (adjust_contrast, ImageEnhance.Contrast, 2.0),  # Pillow rounds the mean
        (adjust_saturation, ImageEnhance.Color, 2.0),  # Pillow rounds the gray
    ],
)
@given(seed=st.integers(0, 2**31), factors=amounts)
def test_colours_as_pillow_enhances_them(adjust, enhance, levels, seed, factors):
    images = pictures(seed, size=9)
    found = 255 * adjust(images, factors.view(3, 1, 1, 1)).permute(0, 2, 3, 1).numpy()
    for image, result, factor in zip(images, found, factors.tolist(), strict=True):
        plain = Image.fromarray((255 * image).round().byte().permute(1, 2, 0).numpy())
        expected = np.asarray(enhance(plain).enhance(factor), np.float64)
        assert np.abs(result - expected).max() <= levels


@given(st.integers(0, 2**31), amounts)
def test_colours_by_the_formula(seed, factors):
    """Brightness, contrast and saturation blend with black, with the image's mean gray and with the pixel's own."""
    images, shaped = pictures(seed).double(), factors.view(3, 1, 1, 1).double()
    red, green, blue = images.numpy().transpose(1, 0, 2, 3)
    gray = 0.299 * red + 0.587 * green + 0.114 * blue
    for adjust, other in (
        (adjust_brightness, np.zeros((3, 1, 1))),
        (adjust_contrast, gray.mean((1, 2), keepdims=True)),
        (adjust_saturation, gray),
    ):
        factor = factors.double().numpy()[:, None, None]
        expected = [np.clip(factor * channel + (1 - factor) * other, 0, 1) for channel in (red, green, blue)]
        np.testing.assert_allclose(adjust(images, shaped).numpy(), np.stack(expected, 1), atol=1e-9)


def test_luminance_as_pillow_has_it():
    images = pictures(0, size=30)
    found = 255 * luminance(images)[:, 0].numpy()
    for image, result in zip(images, found, strict=True):
        plain = Image.fromarray((255 * image).round().byte().permute(1, 2, 0).numpy())
        assert np.abs(result - np.asarray(plain.convert("L"), np.float64)).max() <= 1


@given(st.integers(0, 2**31))
def test_strength_one_and_shift_zero_change_nothing(seed):
    images, one = pictures(seed), torch.ones(3, 1, 1, 1)
    for adjust in (adjust_brightness, adjust_contrast, adjust_saturation):
        assert torch.equal(adjust(images, one), images)
    for whole_turns in (0.0, 1.0, -1.0):
        torch.testing.assert_close(adjust_hue(images, whole_turns * one), images, rtol=0, atol=3e-6)


# Views


def plain_views(**changes):
    """Views that show the whole image as it is, but for the changes."""
    still = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0, "jitter": 0.0, "grayscale": 0.0}
    return Views(**{"size": 8, **still, **changes})


def noise(count, size=8, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)
    return torch.from_numpy(pixels), torch.full((count, 2), size)


def in_order(pixels):
    return pixels.permute(0, 3, 1, 2) / 255


def test_views_of_the_paper_have_the_right_shape_and_range():
    views = Views(32)(*noise(6, 40), seeded())
    assert views.shape == (2, 6, 3, 32, 32)
    assert views.dtype == torch.float32
    assert views.min() >= 0
    assert views.max() <= 1
    assert Views(16, count=3)(*noise(2), seeded()).shape == (3, 2, 3, 16, 16)


def test_views_without_any_change_are_the_image():
    pixels, sizes = noise(5)
    for view in plain_views(count=3)(pixels, sizes, seeded()):
        assert torch.equal(view, in_order(pixels))


def test_a_flip_mirrors():
    pixels, sizes = noise(5)
    for view in plain_views(flip=1.0)(pixels, sizes, seeded()):
        torch.testing.assert_close(view, in_order(pixels).flip(-1), rtol=0, atol=1e-6)


def test_share_of_gray_images():
    pixels, sizes = noise(2000)
    for view in plain_views(grayscale=0.2)(pixels, sizes, seeded(1)):
        untouched = (view == in_order(pixels)).flatten(1).all(1)
        gray = torch.isclose(view, luminance(in_order(pixels)), atol=1e-6).flatten(1).all(1)
        assert (gray ^ untouched).all()
        assert stats.binomtest(int(gray.sum()), 2000, 0.2).pvalue > UNLIKELY


def test_full_grayscale_leaves_no_colour():
    pixels, sizes = noise(20)
    views = Views(8, grayscale=1.0)(pixels, sizes, seeded())
    assert torch.equal(views[:, :, 0], views[:, :, 1])
    assert torch.equal(views[:, :, 0], views[:, :, 2])


def strengths(setting, spread, pixels, measure):
    """The strength each of 3000 equal images got, in each of two views, by what became of it."""
    count = 3000
    others = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    views = plain_views(jitter=0.8, **{**others, setting: spread})
    batch = pixels[None].expand(count, -1, -1, -1).contiguous()
    return [measure(view).double().numpy() for view in views(batch, torch.full((count, 2), 8), seeded(4))]


def two_tones(first, second):
    """8 x 8, the upper half of one colour and the lower of the other."""
    halves = torch.tensor([first, second], dtype=torch.uint8)[:, None, None, :]
    return halves.expand(2, 4, 8, 3).reshape(8, 8, 3)


def hue_of(view):
    pixels = view[:, :, 0, 0].tolist()
    return torch.tensor([(colorsys.rgb_to_hsv(*pixel)[0] + 0.5) % 1 - 0.5 for pixel in pixels])


@pytest.mark.parametrize(
    ("setting", "spread", "pixels", "measure", "nothing"),
    [
        ("brightness", 0.4, two_tones([100] * 3, [100] * 3), lambda view: view[:, 0, 0, 0] * 2.55, 1.0),
        ("contrast", 0.3, two_tones([60] * 3, [180] * 3), lambda v: (v[:, 0, 7, 0] - v[:, 0, 0, 0]) * 255 / 120, 1.0),
        ("saturation", 0.4, two_tones([140, 90, 90], [90] * 3), lambda v: (v[:, 0] - v[:, 1])[:, 0, 0] * 5.1, 1.0),
        ("hue", 0.1, two_tones([200, 100, 100], [0] * 3), hue_of, 0.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_image_has_its_own_strength(setting, spread, pixels, measure, nothing):
    first, second = strengths(setting, spread, pixels, measure)
    for found in (first, second):
        changed = np.abs(found - nothing) > 1e-5
        assert stats.binomtest(int(changed.sum()), len(found), 0.8).pvalue > UNLIKELY
        uniform = stats.kstest(found[changed], "uniform", (nothing - spread, 2 * spread))
        assert uniform.pvalue > UNLIKELY
    assert abs(stats.pearsonr(first, second).statistic) < 0.1  # the views are independent


def test_operations_come_in_a_random_order():
    """Saturation blends with the pixel's gray, which depends on its hue: the brightest channel tells the order."""
    colour = [140 / 255, 90 / 255, 100 / 255]
    pixels = torch.tensor([140, 90, 100], dtype=torch.uint8).expand(8, 8, 8, 3).contiguous()
    views = plain_views(count=1, jitter=1.0, brightness=0.0, contrast=0.0, saturation=0.4, hue=0.1)
    weights = np.array([0.299, 0.587, 0.114])
    _, saturation, value = colorsys.rgb_to_hsv(*colour)
    saturation_first = []
    for seed in range(20):
        expected, brightest = [], []
        for pixel in views(pixels, torch.full((8, 2), 8), seeded(seed))[0, :, :, 0, 0].tolist():
            strength = (max(pixel) - min(pixel)) / (max(colour) - min(colour))
            turned = colorsys.hsv_to_rgb(colorsys.rgb_to_hsv(*pixel)[0], saturation, value)
            expected.append([strength * value + (1 - strength) * weights @ rgb for rgb in (colour, turned)])
            brightest.append(max(pixel))
        fits = [np.allclose(brightest, np.array(expected)[:, first], rtol=0, atol=1e-5) for first in (0, 1)]
        assert sum(fits) == 1  # one order for the whole batch
        saturation_first.append(fits[0])
    assert 2 < sum(saturation_first) < 18


def test_views_are_normalised_by_the_statistics_given():
    pixels, sizes = noise(5, 20)
    mean, std = (0.1, 0.5, 0.3), (0.2, 0.25, 0.5)
    found = Views(12, mean=mean, std=std)(pixels, sizes, seeded(3))
    plain = Views(12)(pixels, sizes, seeded(3))
    for channel in range(3):
        expected = (plain[:, :, channel].double() - mean[channel]) / std[channel]
        torch.testing.assert_close(found[:, :, channel].double(), expected, rtol=0, atol=1e-6)


def test_same_generator_same_views_and_the_global_state_is_left_alone():
    pixels, sizes = noise(4, 12)
    before = torch.get_rng_state()
    first, second, other = (Views(8)(pixels, sizes, seeded(seed)) for seed in (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [16, 56])
def test_how_many_images_are_made_at_once_changes_nothing(size, monkeypatch):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (7, 60, 50, 3), np.uint8))
    sizes = torch.tensor([[60, 50]] * 7)
    found = []
    for numbers in (2**19, 3 * size**2 * 2, 1):
        monkeypatch.setattr(augment, "MAX_CACHED_VALUES", numbers)
        found.append(Views(size)(pixels, sizes, torch.Generator().manual_seed(3)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-6)


def test_views_of_ragged_images_ignore_the_padding():
    pixels = torch.full((30, 20, 24, 3), 255, dtype=torch.uint8)
    pixels[:, :13, :9] = 10
    views = Views(8, jitter=0.0)(pixels, torch.tensor([[13, 9]] * 30), seeded())
    torch.testing.assert_close(views, torch.full_like(views, 10 / 255), rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_views_work_under_autocast(seed):
    pixels, sizes = noise(4, 12)
    expected = Views(8)(pixels, sizes, seeded(seed))
    with torch.autocast("cpu", torch.bfloat16):
        found = Views(8)(pixels, sizes, seeded(seed))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("crops", [None, Preprocess(12, 20)])
@pytest.mark.parametrize("size", [12, 56])
def test_a_batch_in_parts_has_the_views_of_the_whole(size, crops):
    pixels, sizes = noise(7, 24)
    views = Views(size, crops=crops)
    whole = views(pixels, sizes, seeded(3))
    parts = [slice(0, 3), slice(3, 4), slice(4, 7)]
    found = torch.cat([views(pixels[part], sizes, seeded(3), part) for part in parts], 1)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-6)
