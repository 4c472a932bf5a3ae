"""Seeded randomness that leaves torch's global state as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """In this block torch's generator starts from the seed; afterwards its state is what it was before the block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
