"""What settings mean: views that grow."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscil.errors import ConfigError
from fscil.training.base_training import base_step, new_base_network
from fscil.training.build import views_of
from fscil.training.loop import Batch
from helpers import CONTEXT, SIZE, small_config


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
