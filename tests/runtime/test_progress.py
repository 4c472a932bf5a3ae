import contextlib
import os
import pty
import sys

import pytest

from fscil.runtime import progress
from fscil.runtime.progress import ProgressBar, titled


def test_a_log_gets_no_line_before_its_time(capsys):
    with ProgressBar("reading", 3) as bar:
        for _ in range(3):
            bar.advance()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_lines_with_count_note_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with ProgressBar("training", 10, done=4) as bar:
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
    with ProgressBar("reading", 0, quiet=True) as bar:
        bar.advance(note="unseen")
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through():
    with pytest.raises(KeyError), ProgressBar("reading", 2):
        raise KeyError("lost")


def test_a_terminal_shows_a_live_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal, end = pty.openpty()
    with os.fdopen(end, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressBar("training", 8, done=2) as bar:
            bar.advance(3, note="loss 1.23")
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(terminal, 4096):
            shown += part
    os.close(terminal)
    for expected in ("training", "5/8", "left", "loss 1.23"):
        assert expected in shown.decode()


def test_a_title_stands_before_the_work(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with titled("[1/2] alice: "), ProgressBar("training", 2) as bar:
        bar.advance()
    with ProgressBar("training", 2) as bar:
        bar.advance()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("[1/2] alice: training: 1/2, ")
    assert second.startswith("training: 1/2, ")
