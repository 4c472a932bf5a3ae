"""Files and settings from anywhere: an error with a message or a result, and never anything else.

benchmarks/fuzz.py does the same for as long as one likes, and by coverage where atheris is installed.
"""

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from fuzz_targets import TARGETS, at_random, check  # noqa: E402

MANY = {"forged_model": 200}  # inputs; 60 of others


@pytest.fixture(autouse=True)
def torch_engine(monkeypatch):
    """Another one takes seconds to start, for every model."""
    monkeypatch.setenv("FSCIL_ENGINE", "torch")


@pytest.mark.parametrize("target", TARGETS)
def test_mutations_of_valid_input(target):
    """A forged model, too, is an error with a message, or answers with finite numbers."""
    assert at_random(target, seconds=30, most=MANY.get(target, 60), seed=1) > 10


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "forged_model"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_any_input(target, content):
    with tempfile.TemporaryDirectory() as folder:
        check(target, content, Path(folder))
