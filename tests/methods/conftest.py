"""Short sessions for the systems that train on features: what they do in each step is what is tested."""

import pytest

from fscil.methods import semantic_kd, synthesized


@pytest.fixture(autouse=True)
def short_sessions(monkeypatch):
    for module in (semantic_kd, synthesized):
        monkeypatch.setattr(module, "SESSION_STEPS", 10)
