"""Short sessions for the systems that train on features, and few episodes: what a step does is what is tested."""

import pytest

from fscil.methods import cec, semantic_kd, synthesized


@pytest.fixture(autouse=True)
def short_sessions(monkeypatch):
    for module in (semantic_kd, synthesized):
        monkeypatch.setattr(module, "SESSION_STEPS", 10)
    monkeypatch.setattr(cec, "EPISODES", 1)
