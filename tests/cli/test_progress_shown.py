"""Commands that take more than a moment say what they are doing: a bar on a terminal, nothing with --quiet."""

import contextlib
import os
import pty
import shutil
import subprocess

import pytest
from PIL import Image

from helpers import COMMAND, environment, picture
from serving import estimated_classifier


@pytest.fixture
def folder(tmp_path):
    """A model, and photos of two classes."""
    work = tmp_path / "work"
    estimated_classifier().save(work / "model")
    for label, name in enumerate(("gnu", "hen")):
        (work / "new" / name).mkdir(parents=True)
        for seed in range(3):
            Image.fromarray(picture(label, seed)).save(work / "new" / name / f"{seed}.png")
    return work


def on_a_terminal(arguments, folder, cache):
    """Exit code, what went to standard output, and what a terminal showed of standard error."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**environment(cache), "TERM": "xterm", "COLUMNS": "160", "FSCIL_ENGINE": "torch"},
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
    ) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(terminal, 4096):
                shown += part
        out = process.stdout.read()
    os.close(terminal)
    return process.returncode, out, shown.decode()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("enroll", "model", "new"), ("[1/2] gnu: photos", "[2/2] hen: photos", "3/3")),
        (("enroll", "model", "gnu", "new/gnu"), ("gnu: photos", "3/3")),
        (("reject", "model", "class 1", "new/gnu"), ("photos", "3/3")),
        (("copy", "model", "copied"), ("copy", "2/2", "writing 36 photos")),
        (("export", "model", "--onnx", "model.onnx"), ("export", "33/33", "the network as ONNX", "images compared")),
        (("upgrade", "model"), ("decision rule",)),
        (("predict", "model", "new", "-o", "table.csv"), ("photos", "6/6")),
        (("backbones", "--no-speed"), ("networks",)),
    ],
    ids=lambda value: " ".join(value[:3]),
)
def test_a_terminal_shows_what_is_being_done(folder, pixel_cache, arguments, shown):
    before = shutil.copytree(folder, folder.with_name("again"))
    code, out, seen = on_a_terminal(arguments, folder, pixel_cache)
    assert code == 0, seen
    for text in shown:
        assert text in seen
    assert not any(text in out for text in shown)
    code, _, seen = on_a_terminal([*arguments, "--quiet"], before, pixel_cache)
    assert (code, [text for text in shown if text in seen]) == (0, [])
