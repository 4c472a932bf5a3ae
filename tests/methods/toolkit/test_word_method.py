"""Methods that use word vectors: which they may know when, and which recipes and states are refused."""

import re

import pytest
import torch
from word_systems import BASE, DATA, TABLE, build_method, fitted_method, session, write

from fscil.errors import ConfigError, DataError, StoreError
from fscil.methods.semantic_kd import SemanticKD
from fscil.methods.synthesized import Synthesized


@pytest.fixture(params=[SemanticKD, Synthesized])
def method(request):
    return request.param


def test_nothing_is_known_of_the_words_to_come(method, words, tmp_path):
    """Other vectors for classes of the third session change nothing before it."""
    other = TABLE.copy()
    other[10:] = 7.0
    first, second = build_method(method, words), build_method(method, write(tmp_path / "other.txt", other))
    for each in (first, second):
        each.fit_base(BASE, (2,))
        each.learn(session(1))
        each.learn(session(2))
    assert torch.equal(first.scores(DATA.test), second.scores(DATA.test))
    assert all(torch.equal(value, second.state()[name]) for name, value in first.state().items())
    for each in (first, second):
        each.learn(session(3))
    assert not torch.equal(first.scores(DATA.test), second.scores(DATA.test))


def test_a_recipe_without_word_vectors_is_refused_before_fitting(method):
    with pytest.raises(ConfigError, match=re.escape(f"{method.title} needs word vectors")):
        build_method(method, "")


def test_a_class_without_a_word_vector_is_named(method, tmp_path):
    with pytest.raises(DataError, match="no word vector for 2 of 12 classes: koala, lynx"):
        build_method(method, write(tmp_path / "short.txt", TABLE[:10]))


def test_a_state_is_not_loaded_under_other_word_vectors(method, words, tmp_path):
    state = fitted_method(method, words).state()
    other = build_method(method, write(tmp_path / "other.txt", TABLE[:, ::-1]))
    with pytest.raises(StoreError, match="word vectors are not those"):
        other.load_state(state)
