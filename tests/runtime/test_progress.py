import contextlib
import os
import pty
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscil.runtime import progress
from fscil.runtime.progress import Bar, clock


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
def test_clock(seconds, expected):
    assert clock(seconds) == expected


@given(st.floats(0, 1e7))
def test_clock_never_shows_sixty(seconds):
    words = clock(seconds).split()
    units = {"s": 1, "min": 60, "h": 3600, "days": 86400}
    shown = sum(float(value) * units[unit] for value, unit in zip(words[::2], words[1::2], strict=True))
    assert abs(shown - seconds) <= max(0.5, 0.5 * units[words[-1]] if words[-1] != "days" else 0.05 * 86400) + 1e-6
    assert all(float(value) < 60 for value, unit in zip(words[::2], words[1::2], strict=True) if unit in ("s", "min"))


def test_a_log_gets_no_line_before_its_time(capsys):
    with Bar("reading", 3) as bar:
        for _ in range(3):
            bar.advance()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_lines_with_count_note_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with Bar("training", 10, done=4) as bar:
        bar.advance(note="loss 1.23")
        bar.advance(2)
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.startswith("training: 5/10, ")
    assert second.startswith("training: 7/10, ")
    for line in (first, second):  # the note stays until there is another
        assert " left " in line
        assert line.endswith("loss 1.23")


def test_quiet_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with Bar("reading", 0, quiet=True) as bar:
        bar.advance(note="unseen")
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through():
    with pytest.raises(KeyError), Bar("reading", 2):
        raise KeyError("lost")


def test_a_terminal_shows_a_live_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal, end = pty.openpty()
    with os.fdopen(end, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Bar("training", 8, done=2) as bar:
            bar.advance(3, note="loss 1.23")
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(terminal, 4096):
            shown += part
    os.close(terminal)
    for expected in ("training", "5/8", "left", "loss 1.23"):
        assert expected in shown.decode()
