"""What settings mean: views that grow, test images that are seen whole."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscil.config import load_recipe, recipe_names
from fscil.errors import ConfigError
from fscil.models import build_backbone
from fscil.training.base_training import base_step, new_base_network
from fscil.training.build import backbone_of, require_whole_test_images, views_of
from fscil.training.loop import Batch
from helpers import CONTEXT, SIZE, small_config, tiny_dataset


@given(st.integers(1, 64), st.integers(0, 63), st.floats(0, 1), st.floats(0, 1))
def test_views_grow_to_their_size_and_are_never_smaller_than_asked_for(size, smaller, grown, progress):
    first = max(1, size - smaller)
    config = small_config(f"views.size={size}", f"views.first_size={first}", f"views.grown={grown}")
    found = views_of(config, progress).size
    straight = size if progress >= grown else first + (size - first) * progress / grown
    assert found >= first
    assert found % 4 == size % 4 or found == first
    assert found <= math.floor(straight + 1e-9)
    assert found > straight - 4 - 1e-9
    assert views_of(config, max(progress, grown)).size == size
    assert views_of(config).size == size


def test_without_a_first_size_views_are_as_they_are():
    assert views_of(small_config(), 0.0) == views_of(small_config(), 0.7) == views_of(small_config())
    assert views_of(small_config(), 0.0).size == SIZE


def test_training_passes_the_smaller_views():
    config = small_config("views.first_size=8", "views.grown=0.5", "views.count=2", "mixing.repeats=0")
    network = new_base_network(config, 6, CONTEXT)
    seen = []
    network.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(tuple(inputs[0].shape)))
    step = base_step(config, network, 6)
    pixels = torch.randint(0, 256, (12, SIZE, SIZE, 3), dtype=torch.uint8)
    for progress in (0.0, 0.3, 0.5, 1.0):
        losses = list(step(Batch(pixels, torch.full((12, 2), SIZE), torch.arange(12) % 6, torch.Generator(), progress)))
        assert len(losses) == 2
    assert seen == [(12, 3, size, size) for size in (8, 8, 12, 12, 16, 16, 16, 16)]


def test_views_do_not_shrink():
    with pytest.raises(ConfigError, match=r"views.first_size = 20: .* at most views\.size"):
        small_config("views.first_size=20")


def test_the_initialisation_is_the_recipes():
    """The same seed twice: once for the network built by hand, once for the recipe's."""
    for kind in ("kaiming", "torch"):
        config = small_config(f"model.initialisation={kind}", "train.seed=3")
        torch.manual_seed(3)
        by_hand = build_backbone("resnet18", width=2, initialisation=kind)
        found = backbone_of(config)
        assert all(torch.equal(value, found.state_dict()[name]) for name, value in by_hand.state_dict().items())


def test_a_crop_that_loses_most_of_a_test_image_is_refused():
    """views.size was changed alone: the message has the setting that is missing, and with it all is well."""
    images = tiny_dataset().train  # of 16 pixels
    for fine in (["views.size=14"], ["views.size=32"], ["views.size=6", "test.resize=6"]):
        require_whole_test_images(small_config(*fine), images)
    with pytest.raises(ConfigError, match=r"views\.size = 7: of test images of 16 pixels .* --set test\.resize=8$"):
        require_whole_test_images(small_config("views.size=7"), images)
    require_whole_test_images(small_config("views.size=7", "test.resize=8"), images)
    with pytest.raises(ConfigError, match="of test images of 100 pixels"):
        require_whole_test_images(small_config("test.resize=100"), images)


def test_no_recipe_loses_much_of_its_test_images():
    for name in recipe_names():
        config = load_recipe(name)
        stored = config.test.resize or config.data.resize or config.views.size
        assert config.views.size >= 0.85 * (stored if isinstance(stored, int) else min(stored)), name
