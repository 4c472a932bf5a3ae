"""Word vectors as users have them: GloVe and word2vec text, names in many spellings, files that are damaged."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscil.data.word_vectors import class_vectors, load_word_vectors
from fscil.errors import ConfigError, DataError

SHARED = Path(os.environ.get("FSCIL_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture
def table(tmp_path):
    """Write a file of lines; text or bytes."""

    def write(*lines):
        path = tmp_path / "vectors.txt"
        path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
        return path

    return write


def found(path, *names):
    return load_word_vectors(path, names).tolist()


# Formats


def test_glove(table):
    path = table("cat 1 2.5 -3", "dog 0.5 1e-3 4")
    assert found(path, "dog", "cat") == [[0.5, pytest.approx(1e-3), 4], [1, 2.5, -3]]
    assert load_word_vectors(path, ["cat"]).dtype == np.float32


def test_word2vec_has_a_line_of_counts(table):
    assert found(table("2 3", "cat 1 2 3", "dog 4 5 6"), "cat", "dog") == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "lines", [["cat\t1\t2", "dog\t3\t4"], ["cat  1   2 ", "dog 3 4 \r"], ["", "cat 1 2", "", "dog 3 4"]]
)
def test_blanks_of_any_kind(table, lines):
    assert found(table(*lines), "cat", "dog") == [[1, 2], [3, 4]]


def test_a_byte_order_mark_is_no_part_of_the_name(table):
    assert found(table(b"\xef\xbb\xbfcat 1 2", "dog 3 4"), "cat") == [[1, 2]]
    assert found(table(b"\xef\xbb\xbf1 2", "dog 3 4"), "dog") == [[3, 4]]


def test_words_that_are_odd_blanks_or_no_text_at_all_are_passed_by(table):
    """The large published tables have a few of each."""
    path = table("cat 1 2", "\N{NO-BREAK SPACE} 3 4", ". . . 5 6", b"\xff\xfe 7 8", "nan 9 9", "dog 3 4")
    assert found(path, "cat", "dog") == [[1, 2], [3, 4]]


# Names


@pytest.mark.parametrize(
    "name", ["polar bear", "polar_bear", "Polar Bear", "Polar-bear", "017.Polar_bear", "17 polar bear"]
)
@pytest.mark.parametrize("line", ["polar bear", "polar_bear", "Polar-Bear", "003.polar_bear"])
def test_spellings_of_one_name(table, name, line):
    assert found(table("ant 9 9", f"{line} 1 2", "polar 5 5", "bear 7 7"), name) == [[1, 2]]


def test_a_name_as_it_is_goes_before_one_that_is_alike(table):
    path = table("Apple 1 1", "apple 2 2", "APPLE 3 3")
    assert found(path, "Apple", "apple", "APPLE", "aPPle") == [[1, 1], [2, 2], [3, 3], [2, 2]]


def test_the_first_of_two_lines_counts(table):
    assert found(table("cat 1 1", "cat 2 2"), "cat") == [[1, 1]]


def test_a_name_of_several_words_is_their_mean(table):
    path = table("black 1 0", "footed 4 2", "albatross 1 10", "gull 7 7")
    assert found(path, "001.Black_footed_Albatross") == [[2, 4]]
    assert found(path, "black gull", "gull") == [[4, 3.5], [7, 7]]


def test_numbers_inside_a_name_are_words(table):
    """Or two classes would have one vector."""
    path = table("boeing 3 0", "737 0 3", "300 0 0", "400 0 6")
    assert found(path, "Boeing 737-300", "Boeing 737-400") == [[1, 1], [1, 3]]
    assert found(path, "737-300") == [[0, 1.5]]


def test_numbers_at_the_end_of_a_name_are_not_of_the_vector(table):
    assert found(table("boeing 737 1 2", "cat 3 4", "dog 5 6"), "boeing 737", "dog") == [[1, 2], [5, 6]]
    assert found(table("2 2", "boeing 737 1 2", "airbus 320 3 4"), "airbus 320") == [[3, 4]]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_any_script_in_any_composition(table, form):
    names = ["dög", "鹿", "लाल पक्षी", "Ёж", "İstanbul"]
    path = table(*(unicodedata.normalize(form, f"{name} {place} 1") for place, name in enumerate(names)))
    for asked in ("NFC", "NFD"):
        vectors = found(path, *(unicodedata.normalize(asked, name) for name in names))
        assert [place for place, _ in vectors] == [0, 1, 2, 3, 4]
    assert found(path, "ЁЖ") == [[3, 1]]


def test_words_of_a_script_with_marks_stay_whole(table):
    assert found(table("लाल 1 3", "पक्षी 3 5"), "लाल_पक्षी") == [[2, 4]]


def test_names_may_repeat(table):
    assert found(table("crane 1 2", "dog 3 4"), "crane", "dog", "crane") == [[1, 2], [3, 4], [1, 2]]


@given(st.lists(st.text(st.characters(categories=["L"]), min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
def test_every_name_finds_its_own_line(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("words") / "vectors.txt"
    path.write_text("".join(f"{name} {place} 0.5\n" for place, name in enumerate(names)), encoding="utf-8")
    composed = [unicodedata.normalize("NFC", name) for name in names]
    expected = [composed.index(name) for name in composed]
    assert [place for place, _ in found(path, *names)] == expected


# What can be wrong


def test_classes_without_a_vector_are_named(table):
    path = table("cat 1 2", "polar 3 4")
    with pytest.raises(DataError, match=r"no word vector for 2 of 3 classes: polar bear, 鹿\. Add a line for each"):
        load_word_vectors(path, ["cat", "polar bear", "鹿"])


@pytest.mark.parametrize(
    ("line", "number"), [("dog 1 x 3", 3), ("dog 1 2", 3), ("dog 1 nan 3", 3), ("dog 1 2 1e999", 3), ("dog", 3)]
)
def test_a_damaged_line_is_reported(table, line, number):
    path = table("ant 1 2 3", "bee 1 2 3", line, "cat 1 2 3")
    with pytest.raises(DataError, match=rf"vectors\.txt: line {number} is not a name and 3 numbers\. Fix or remove it"):
        load_word_vectors(path, ["cat", "dog"])


def test_a_truncated_file_is_reported(table):
    path = table(*(f"word{place} 1 2 3" for place in range(150)), "last 1")
    with pytest.raises(DataError, match="line 151 is not a name and 3 numbers"):
        load_word_vectors(path, ["word0"])


def test_a_text_that_holds_no_vectors(table):
    with pytest.raises(DataError, match="line 1 is not a name and its numbers"):
        load_word_vectors(table("these are", "words only"), ["words"])
    with pytest.raises(DataError, match="holds no word vectors"):
        load_word_vectors(table(""), ["cat"])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read \(No such file"):
        load_word_vectors(tmp_path / "none.txt", ["cat"])
    with pytest.raises(DataError, match="cannot be read"):
        load_word_vectors(tmp_path, ["cat"])


def test_a_method_says_what_it_needs(table):
    with pytest.raises(
        ConfigError, match=r"semantic_kd needs word vectors.*--word-vectors FILE.*GloVe.*a name and its"
    ):
        class_vectors("semantic_kd", "", ["cat"])
    path = table("cat 1 2")
    with pytest.raises(ConfigError, match="works with the meaning of class names"):
        class_vectors("semantic_kd", str(path), [])
    assert class_vectors("semantic_kd", str(path), ["cat"]).tolist() == [[1, 2]]


@pytest.mark.skipif(not (SHARED / "data/word_vectors").is_dir(), reason=f"no word vectors under {SHARED}")
@pytest.mark.parametrize(
    ("file", "names"),
    [("cub200.txt", ["001.Black_footed_Albatross", "Sooty Albatross"]), ("cifar100.txt", ["apple", "aquarium fish"])],
)
def test_real_tables(file, names):
    vectors = load_word_vectors(SHARED / "data/word_vectors" / file, names)
    assert vectors.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
