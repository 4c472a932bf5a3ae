"""Where new class vectors start: in the plane of two means, as near to the common one as old vectors allow."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fscil.methods.toolkit.imprinting import FeatureMoments, imprinted


def features_of(count, dim, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator).relu() + shift


def reach(vector, features):
    """Mean and twice the standard deviation of the cosines, over the features themselves."""
    cosines = F.normalize(features).double() @ F.normalize(vector, dim=0).double()
    return float(cosines.mean() + 2 * cosines.std(unbiased=False))


@given(st.integers(2, 12), st.floats(0, 1), st.integers(0, 10**6))
def test_reach_is_that_of_the_cosines(dim, shift, seed):
    features, vectors = features_of(50, dim, seed, shift), torch.randn(3, dim)
    found = FeatureMoments.of(features + 0.01).reach(vectors)
    np.testing.assert_allclose(found, [reach(vector, features + 0.01) for vector in vectors], atol=2e-3)


@settings(max_examples=30)
@given(st.integers(3, 12), st.floats(0, 1), st.integers(0, 10**6))
def test_new_vectors_reach_as_high_as_old_ones_and_no_higher(dim, shift, seed):
    """By trying: turned a little towards the mean of all features, they reach higher than old ones do."""
    features, new = features_of(80, dim, seed, shift) + 0.01, features_of(2, dim, seed + 1, shift) + 0.01
    base, old = FeatureMoments.of(features), torch.randn(5, dim, generator=torch.Generator().manual_seed(seed))
    found = imprinted(F.normalize(new), old, base)
    limit = sum(reach(vector, features) for vector in old) / len(old)
    common = F.normalize(base.mean, dim=0)
    np.testing.assert_allclose(found.norm(dim=1), 1, atol=1e-5)
    for vector, mean in zip(found, new, strict=True):
        plane = torch.linalg.qr(torch.stack([common, mean], 1)).Q
        np.testing.assert_allclose((plane @ (plane.T @ vector)).numpy(), vector.numpy(), atol=1e-3)
        if reach(vector, features) <= limit + 2e-3 and float(vector @ common) < 0.99:
            assert reach(vector + 0.01 * common, features) > limit - 2e-3
        else:
            assert reach(vector - 0.01 * common, features) >= reach(vector, features) - 2e-3
