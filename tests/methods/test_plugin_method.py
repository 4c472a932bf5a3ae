"""The method of docs/extending.md keeps the contract: every check of the battery, run against a plugin."""

import re
import sys
from pathlib import Path

import pytest
import torch
from test_battery import *  # noqa: F403 - its checks and fixtures; `name`, below, is ours
from test_battery import BASE, session

from fscil.methods import METHODS
from fscil.runtime.registry import load_plugin

DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"
(FILE,) = re.findall(
    r"`shrunken\.py`:\n\n```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "shrunken.py"
    path.write_text(FILE, encoding="utf-8")
    modules = set(sys.modules)
    load_plugin(path)
    yield
    METHODS.unregister("shrunken")
    for name in set(sys.modules) - modules:
        if name.startswith("fscil_plugin_"):
            del sys.modules[name]


@pytest.fixture
def name():
    return "shrunken"


def test_the_example_is_short():
    assert len([line for line in FILE.splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize("shots", [2, 1])
def test_new_means_are_shrunk_towards_the_mean_of_the_base_classes(fitted, shots):
    """(k m + g) / (k + 1) for a class with k images of mean m, in loops; g: the mean of the base means."""
    method = fitted()
    base = [method.features(BASE)[BASE.labels == label].mean(0) for label in range(6)]
    new = session(1, shots)
    method.learn(new)
    for label in (6, 7):
        own = method.features(new)[new.labels == label]
        expected = (own.sum(0) + sum(base) / 6) / (shots + 1)
        torch.testing.assert_close(method.means[label], expected)
    torch.testing.assert_close(method.means[:6], torch.stack(base))
