"""Fixed class vectors: angles, number, and what happens when they run out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import BASE, fitted, session, unit

from fscil.errors import ProtocolError, StoreError
from fscil.methods import METHODS
from fscil.methods.toolkit.fixed_targets import FixedTargetMethod, dimension, orthonormal, simplex
from fscil.training.base_training import TrainedNetwork
from helpers import CONTEXT, small_config, untrained_method

NAMES = [name for name, kind in METHODS.items() if issubclass(kind, FixedTargetMethod)]


def test_both_are_covered():
    assert NAMES == ["nc_fscil", "orco"]


@given(st.integers(2, 40), st.integers(0, 10**6))
def test_any_two_vectors_of_a_simplex_have_the_same_angle(dim, seed):
    vectors = simplex(dim, seed).double()
    cosines = vectors @ vectors.T
    expected = torch.full((dim, dim), -1 / (dim - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(cosines, expected, atol=1e-5, rtol=0)


@given(st.integers(1, 40), st.integers(0, 10**6))
def test_a_basis_is_orthonormal(dim, seed):
    vectors = orthonormal(dim, seed).double()
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(dim, dtype=torch.float64), atol=1e-5, rtol=0)


def test_seeds_give_different_vectors_and_the_same_seed_the_same():
    assert torch.equal(simplex(8, 1), simplex(8, 1))
    assert not torch.allclose(simplex(8, 1), simplex(8, 2))


@given(st.integers(1, 5000), st.integers(1, 1024))
def test_there_are_at_least_twice_as_many_as_base_classes(classes, least):
    found = dimension(classes, least)
    assert found >= max(least, 2 * classes)
    assert found == least or (math.log2(found).is_integer() and found < 4 * classes)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_cosines_of_the_projection_and_the_targets(name):
    method = fitted(name)
    method.learn(session(1))
    with torch.no_grad():
        mapped = method.projection(method.features(BASE)).tolist()
    targets = method.targets.tolist()[:8]
    expected = [[sum(a * b for a, b in zip(unit(row), target, strict=True)) for target in targets] for row in mapped]
    np.testing.assert_allclose(method.scores(BASE).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_backbone_never_moves_and_the_projection_does(name):
    method = fitted(name, "incremental.steps=3", "incremental.lr=0.1")
    before = method.state()
    method.learn(session(1))
    after = method.state()
    backbone = [key for key in before if key.startswith("backbone.")]
    projection = [key for key in before if key.startswith("projection.")]
    assert all(torch.equal(before[key], after[key]) for key in backbone)
    assert not any(torch.equal(before[key], after[key]) for key in projection if key.endswith("weight"))


@pytest.mark.parametrize("name", NAMES)
def test_more_classes_than_vectors_are_refused(name):
    method = fitted(name)
    method.targets = method.targets[:7]
    with pytest.raises(ProtocolError, match="has 7 class vectors, fixed in base training, and 6 of them are taken"):
        method.learn(session(1))


@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_another_base_training_is_refused(name):
    network = untrained_method("ncm", small_config(), 6).backbone
    with pytest.raises(StoreError, match=f'train.objective = "{name}"'):
        METHODS[name](small_config(), TrainedNetwork(network, None), CONTEXT)


@pytest.mark.parametrize("name", NAMES)
def test_rate_and_steps_are_the_methods_own_unless_given(name):
    own = untrained_method(name, small_config("incremental.lr=none"), 6)
    assert (own.lr, own.steps) == (METHODS[name].session_lr, METHODS[name].session_steps)
    for data, rate in METHODS[name].session_lr_of_data.items():
        assert untrained_method(name, small_config(f"data.name={data}"), 6).lr == rate
    given_ = untrained_method(name, small_config("incremental.lr=0.3", "incremental.steps=7"), 6)
    assert (given_.lr, given_.steps) == (0.3, 7)
    assert METHODS[name].trains_in_sessions
