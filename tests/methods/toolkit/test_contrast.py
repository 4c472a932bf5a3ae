"""Supervised contrast against the sums of its paper written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fscil.methods.toolkit.contrast import supervised_contrast


def naive(vectors, labels, temperature):
    losses = []
    for i, one in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i]
        cosines = {j: sum(a * b for a, b in zip(one, vectors[j], strict=True)) / temperature for j in others}
        total = sum(math.exp(value) for value in cosines.values())
        positive = [j for j in others if labels[j] == labels[i]]
        if positive:
            losses.append(sum(-math.log(math.exp(cosines[j]) / total) for j in positive) / len(positive))
    return sum(losses) / len(losses) if losses else 0.0


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    temperature=st.sampled_from([0.07, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_in_loops(labels, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = F.normalize(torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)).requires_grad_()
    loss = supervised_contrast(vectors, torch.tensor(labels), temperature)
    assert loss.item() == pytest.approx(naive(vectors.tolist(), labels, temperature), abs=1e-8)
    loss.backward()
    assert vectors.grad.isfinite().all()


def test_autocast_does_not_make_it_coarse():
    vectors = F.normalize(torch.randn(64, 128, generator=torch.Generator().manual_seed(0))).requires_grad_()
    labels = torch.arange(64) % 5
    expected = supervised_contrast(vectors, labels, 0.07)
    with torch.autocast("cpu", torch.bfloat16):
        found = supervised_contrast(vectors, labels, 0.07)
        coarse = supervised_contrast(vectors.bfloat16(), labels, 0.07)
    assert found.dtype == coarse.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert coarse.item() == pytest.approx(expected.item(), rel=1e-2)
    (gradient,) = torch.autograd.grad(found, vectors)
    (wanted,) = torch.autograd.grad(expected, vectors)
    torch.testing.assert_close(gradient, wanted)
