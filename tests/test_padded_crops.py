"""Padded crops against numpy: a window of the image with a black border, at the scale of test images."""

import numpy as np
import pytest
import torch

from fscil.augment import Views, padded_boxes
from fscil.preprocess import Preprocess
from fscil.training.base_training import plain_recipe
from fscil.training.build import views_of
from helpers import small_config


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def plain_views(size, preprocess, **options):
    return Views(size, 1, crops=preprocess, jitter=0.0, grayscale=0.0, **options)


def noise(count, height, width):
    pixels = np.random.default_rng(0).integers(1, 256, (count, height, width, 3), np.uint8)
    return torch.from_numpy(pixels), torch.tensor([[height, width]] * count)


@pytest.mark.parametrize("size", [16, 48])  # below and above the size from which images are cropped one by one
def test_a_view_is_a_window_of_the_padded_image(size):
    pixels, sizes = noise(40, size, size)
    views = plain_views(size, Preprocess(size))(pixels, sizes, seeded())[0]
    border, seen = size // 8, set()
    for image, view in zip(pixels.numpy(), views.numpy(), strict=True):
        padded = np.pad(image, ((border, border), (border, border), (0, 0)))
        found = []
        for mirrored in (False, True):
            for y in range(2 * border + 1):
                for x in range(2 * border + 1):
                    window = padded[y : y + size, x : x + size]
                    window = window[:, ::-1] if mirrored else window
                    if np.allclose(window.transpose(2, 0, 1) / 255, view, atol=1e-4):
                        found.append((y, x, mirrored))
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) > 20
    assert {mirrored for _, _, mirrored in seen} == {True, False}


def test_boxes_are_uniform_over_all_places_and_as_large_as_that_of_the_test():
    sizes = torch.tensor([[30, 40]] * 4000)
    preprocess = Preprocess(24, resize=36)
    boxes = padded_boxes(sizes, preprocess, 0.1, 0.0, seeded())
    left, top, right, bottom = boxes.unbind(1)
    assert ((right - left) == 20).all()  # 24 of 36 pixels, of an image 30 high
    assert ((bottom - top) == 20).all()
    assert sorted(set(left.tolist())) == list(range(-2, 40 - 20 + 2 + 1))
    assert sorted(set(top.tolist())) == list(range(-2, 30 - 20 + 2 + 1))
    counts = np.bincount((left + 2).int().numpy())
    assert counts.min() > 100
    assert counts.max() < 250


def test_images_of_different_sizes_are_padded_at_their_own_edges():
    pixels = torch.zeros(2, 20, 20, 3, dtype=torch.uint8)
    pixels[0, :10, :10], pixels[1] = 255, 255
    sizes = torch.tensor([[10, 10], [20, 20]])
    views = plain_views(10, Preprocess(10, resize=10), padding=0.2)(pixels.repeat(50, 1, 1, 1), sizes.repeat(50, 1))[0]
    white = views.mean((1, 2, 3))
    assert white.min() > 0.8**2 - 0.02
    assert white.max() > 0.99
    assert len(set(white[0::2].tolist())) > 5


def test_without_a_border_or_a_flip_a_view_is_the_test_image():
    pixels, sizes = noise(5, 16, 16)
    preprocess = Preprocess(16)
    views = plain_views(16, preprocess, padding=0.0, flip=0.0, mean=preprocess.mean, std=preprocess.std)
    torch.testing.assert_close(views(pixels, sizes)[0], preprocess(pixels, sizes))


def test_smaller_views_show_the_same_windows():
    pixels, sizes = noise(6, 32, 32)
    large, small = (plain_views(size, Preprocess(32))(pixels, sizes, seeded())[0] for size in (32, 16))
    halved = torch.nn.functional.interpolate(large, (16, 16), mode="bilinear", antialias=True)
    inner = (..., slice(1, -1), slice(1, -1))  # at the edges of a window its surroundings count
    torch.testing.assert_close(small[inner], halved[inner], atol=2e-2, rtol=0)


def test_base_training_of_the_compared_systems_has_padded_crops_and_flips_only():
    recipe = plain_recipe(small_config("views.jitter=0.8", "views.grayscale=0.2", "views.flip=0.25"))
    assert (recipe.views.kind, recipe.views.count, recipe.views.flip) == ("crops", 1, 0.25)
    assert (recipe.views.jitter, recipe.views.grayscale) == (0, 0)
    assert views_of(recipe).crops is not None
    assert views_of(small_config()).crops is None
