"""Short sessions for the methods that train on features, few episodes, a short queue: what a step does is tested."""

import pytest
from word_systems import write

from fscil.methods import cec, orco, savc, semantic_kd, synthesized


@pytest.fixture(autouse=True)
def short_sessions(monkeypatch):
    for module in (semantic_kd, synthesized):
        monkeypatch.setattr(module, "SESSION_STEPS", 10)
    monkeypatch.setattr(cec, "EPISODES", 1)
    monkeypatch.setattr(savc, "QUEUE", 128)
    monkeypatch.setattr(orco, "ALIGNED_EPOCHS", 30)  # an epoch has few steps


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A file of word vectors for all class names."""
    return write(tmp_path_factory.mktemp("words") / "vectors.txt")
