"""What messages are made of: suggestions, short lists, durations and plurals."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscil.runtime.text import count, csv_text, did_you_mean, duration, first_few, printable


@pytest.mark.parametrize(
    ("name", "near"), [("cifar10", "cifar100"), ("mini_imagnet", "mini_imagenet"), ("glyphs", "glyphs")]
)
def test_the_nearest_name_is_suggested(name, near):
    assert did_you_mean(name, ["glyphs", "cifar100", "mini_imagenet"]) == f' Did you mean "{near}"?'


def test_nothing_is_suggested_where_nothing_is_near():
    assert did_you_mean("xyzzy", ["glyphs", "cifar100"]) == ""
    assert did_you_mean("xyzzy", []) == ""


def test_how_near_a_suggestion_must_be():
    assert did_you_mean("cub", ["cub200"]) == ' Did you mean "cub200"?'
    assert did_you_mean("cub", ["cub200"], cutoff=0.9) == ""


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c, …"),
    ],
)
def test_the_first_few_of_a_list(names, shown):
    assert first_few(names) == shown


def test_how_many_are_shown_is_a_choice():
    assert first_few(["a", "b"], shown=1) == "a, …"


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (1, ["photo"], "1 photo"),
        (2, ["photo"], "2 photos"),
        (0, ["photo"], "0 photos"),
        (1, ["class", "classes"], "1 class"),
        (3, ["class", "classes"], "3 classes"),
    ],
)
def test_plurals(number, words, expected):
    assert count(number, *words) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (12.4, "12 s"),
        (59.4, "59 s"),
        (59.7, "1 min 00 s"),
        (119.6, "2 min 00 s"),
        (185, "3 min 05 s"),
        (3599.8, "1 h 00 min"),
        (7199, "2 h 00 min"),
        (2 * 3600 + 10 * 60, "2 h 10 min"),
        (47.5 * 3600, "47 h 30 min"),
        (48 * 3600, "2.0 days"),
        (4.2 * 86400, "4.2 days"),
    ],
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected


@given(st.floats(0, 1e7))
def test_a_duration_never_shows_sixty(seconds):
    words = duration(seconds).split()
    units = {"s": 1, "min": 60, "h": 3600, "days": 86400}
    shown = sum(float(value) * units[unit] for value, unit in zip(words[::2], words[1::2], strict=True))
    assert abs(shown - seconds) <= max(0.5, 0.5 * units[words[-1]] if words[-1] != "days" else 0.05 * 86400) + 1e-6
    assert all(float(value) < 60 for value, unit in zip(words[::2], words[1::2], strict=True) if unit in ("s", "min"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Käfer 🐞 甲虫", "Käfer 🐞 甲虫"),
        ("family 👨\u200d👩", "family 👨\u200d👩"),
        ("a\u00a0b", "a\u00a0b"),
        ("bell\x07 esc\x1b[2J\r\n\t", "bell\\x07 esc\\x1b[2J\\r\\n\\t"),
        ("gpj\u202eexe", "gpj\\u202eexe"),
        ("caf\udce9", "caf\\udce9"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_is_no_text_is_escaped(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_no_control_character_is_left(text):
    shown = printable(text).replace("\u200d", "").replace("\u200c", "")
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not csv_text(text).startswith(("=", "+", "-", "@", "\t", "\r"))


def test_lines_can_be_kept():
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
