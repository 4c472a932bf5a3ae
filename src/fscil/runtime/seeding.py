"""Seeded randomness that leaves torch's global state as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """In this block torch's generator starts from the seed; afterwards it goes on as if the block had not been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
