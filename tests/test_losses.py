import doctest
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from fscil import losses
from fscil.losses import LOSSES, angular_penalty, arcface, softmax, sphereface


def mean_loss(cosine, target, scale, own):
    """Cross-entropy as a double loop; own(cos) is what the loss makes of the true class's cosine."""
    total = 0.0
    for row, true in zip(cosine.tolist(), target.tolist(), strict=True):
        numerator = math.exp(scale * own(row[true]))
        rest = 0.0
        for label, value in enumerate(row):
            if label != true:
                rest += math.exp(scale * value)
        total += math.log(numerator / (numerator + rest))
    return -total / len(target)


def arcface_own(margin):
    def own(cosine):
        angle = math.acos(cosine)
        return math.cos(angle + margin) if angle + margin < math.pi else cosine - margin * math.sin(margin)

    return own


def sphereface_own(margin):
    def own(cosine):
        angle = math.acos(cosine)
        fold = math.floor(margin * angle / math.pi)
        return (-1) ** fold * math.cos(margin * angle) - 2 * fold

    return own


@st.composite
def problems(draw):
    rows, classes = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    cosine = torch.rand(rows, classes, generator=random, dtype=torch.float64) * 1.998 - 0.999
    return cosine, torch.randint(classes, (rows,), generator=random)


@given(problems(), st.floats(0.5, 40), st.floats(0, 0.9))
def test_angular_penalty_is_equation_4(problem, scale, margin):
    cosine, target = problem
    expected = mean_loss(cosine, target, scale, lambda value: value - margin)
    assert angular_penalty(cosine, target, scale, margin).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_angular_penalty_defaults_are_the_papers():
    cosine, target = torch.rand(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    expected = mean_loss(cosine, target, 30.0, lambda value: value - 0.4)
    assert angular_penalty(cosine, target).item() == pytest.approx(expected, rel=1e-9)


@given(problems(), st.floats(0.5, 40), st.floats(0, 1.2))
def test_arcface_adds_to_the_angle(problem, scale, margin):
    cosine, target = problem
    expected = mean_loss(cosine, target, scale, arcface_own(margin))
    assert arcface(cosine, target, scale, margin).item() == pytest.approx(expected, rel=1e-7, abs=1e-9)


@given(problems(), st.floats(0.5, 8), st.floats(1, 4))
def test_sphereface_multiplies_the_angle(problem, scale, margin):
    cosine, target = problem
    expected = mean_loss(cosine, target, scale, sphereface_own(margin))
    assert sphereface(cosine, target, scale, margin).item() == pytest.approx(expected, rel=1e-7, abs=1e-9)


@given(problems(), st.floats(0.5, 40))
def test_softmax_is_equation_3_with_a_scale(problem, scale):
    cosine, target = problem
    expected = mean_loss(cosine, target, scale, lambda value: value)
    assert softmax(cosine, target, scale).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(problems(), st.floats(0.5, 40))
def test_without_a_margin_all_are_the_plain_softmax(problem, scale):
    cosine, target = problem
    plain = softmax(cosine, target, scale)
    for loss, nothing in ((angular_penalty, 0.0), (arcface, 0.0), (sphereface, 1.0)):
        torch.testing.assert_close(loss(cosine, target, scale, nothing), plain, rtol=1e-6, atol=1e-8)


@given(problems(), st.floats(0.1, 0.5), st.floats(1.2, 3))
def test_a_margin_makes_it_harder(problem, added, factor):
    cosine, target = problem
    assume(cosine.shape[1] > 1)  # alone, a class has nothing to win against
    plain = softmax(cosine, target, 4.0)
    assert angular_penalty(cosine, target, 4.0, added) > plain
    assert arcface(cosine, target, 4.0, added) > plain
    assert sphereface(cosine, target, 4.0, factor) > plain


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_are_those_of_the_function(name):
    random = torch.Generator().manual_seed(3)
    cosine = (torch.rand(6, 5, generator=random, dtype=torch.float64) * 1.8 - 0.9).requires_grad_()
    target = torch.tensor([0, 1, 2, 3, 4, 0])
    margin = 2.0 if name == "sphereface" else 0.4
    assert torch.autograd.gradcheck(lambda values: LOSSES[name](values, target, 3.0, margin), cosine)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("own", [1.0, -1.0, 1.0 + 1e-6, -1.0 - 1e-6, 0.0])
def test_finite_where_a_feature_lies_on_or_against_its_class(name, own):
    """Rounding puts a cosine a little beyond 1; neither loss nor gradient may become NaN there."""
    cosine = torch.tensor([[own, 0.3, -0.2]], requires_grad=True)
    loss = LOSSES[name](cosine, torch.tensor([0]), 30.0, 2.0 if name == "sphereface" else 0.4)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(cosine.grad).all()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_input_is_left_as_it_was(name):
    cosine = torch.rand(4, 3)
    before = cosine.clone()
    LOSSES[name](cosine, torch.tensor([0, 1, 2, 0]), 30.0, 2.0)
    assert torch.equal(cosine, before)


def test_equals_torch_cross_entropy_on_shifted_logits():
    cosine, target = torch.rand(8, 6) * 2 - 1, torch.arange(8) % 6
    shifted = 30 * (cosine - 0.4 * F.one_hot(target, 6))
    torch.testing.assert_close(angular_penalty(cosine, target), F.cross_entropy(shifted, target))


def test_the_examples_of_the_docstrings():
    failed, tried = doctest.testmod(losses)
    assert not failed
    assert tried
