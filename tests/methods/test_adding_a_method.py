"""The example of docs/adding-a-method.md keeps the contract: every check of the battery, run against it."""

import re
import types
from pathlib import Path

import pytest
import torch
from test_battery import *  # noqa: F403 - its checks and fixtures; `name`, below, is ours
from test_battery import BASE, session

from fscil.methods import METHODS

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
FILE, LINE = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """As if the file and the line were where the document puts them."""
    module = types.ModuleType("teen")
    exec(compile(FILE, str(DOCUMENT), "exec"), module.__dict__)
    (entry,) = eval(f"{{{LINE}}}", module.__dict__).items()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, *entry)
        yield


@pytest.fixture
def name():
    return "teen"


def test_the_example_is_short():
    assert len([line for line in FILE.splitlines() if line.strip()]) <= 40


def test_the_example_draws_new_means_to_base_means(fitted):
    """p' = p/2 + sum_b w_b b/2, w = softmax(16 cos(p, b)), in loops."""
    method = fitted()
    base = method.means.clone()
    new = session(1)
    method.learn(new)
    for label in (6, 7):
        mean = method.network.features(new)[new.labels == label].mean(0)
        weights = [torch.exp(16 * torch.dot(mean, b) / mean.norm() / b.norm()) for b in base]
        drawn = sum(weight * b for weight, b in zip(weights, base, strict=True)) / sum(weights)
        torch.testing.assert_close(method.means[label], (mean + drawn) / 2)
    assert torch.equal(method.means[:6], base)
    assert method.scores(BASE).shape == (len(BASE), 8)
