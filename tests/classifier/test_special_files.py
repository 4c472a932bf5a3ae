"""Links, pipes and devices in a model folder of somebody else: they change no file of ours, and nothing waits."""

import os
import shutil
import signal

import pytest

from fscil.classifier import Classifier, StoredClassifier
from fscil.errors import FscilError, StoreError
from helpers import call, picture

FILES = [".lock", ".server", ".server.json", "journal-1.jsonl", "model.json", "gallery-1.safetensors", "weights"]


@pytest.fixture(autouse=True)
def no_waiting():
    def too_long(*_):
        raise TimeoutError("waits")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def place_of(model, name):
    path = next(model.glob("weights-*")) if name == "weights" else model / name
    path.unlink(missing_ok=True)
    return path


def use(model):
    """All that a person may do; returns what failed."""
    failed = []

    def serve():
        with StoredClassifier.open(model, "cpu", serving=True) as stored:
            stored.enroll("bee", picture(1, 50))

    def change():
        with StoredClassifier.open(model, "cpu") as stored:
            stored.enroll("new", picture(8, 0))
            stored.forget("new")

    def load():
        Classifier.load(model, "cpu").predict(picture(0, 9))

    for act in (load, change, serve, lambda: Classifier.load(model, "cpu").save(model)):
        try:
            act()
        except FscilError as error:
            failed.append(error)
    return failed


@pytest.mark.parametrize("name", FILES)
def test_a_link_changes_no_file_elsewhere(model, tmp_path, name):
    mine = tmp_path / "mine.txt"
    path = place_of(model, name)
    for content in (b"my diary\n", b"", None):
        mine.unlink(missing_ok=True)
        if content is not None:
            mine.write_bytes(content)
        path.unlink(missing_ok=True)
        path.symlink_to(mine)
        failed = use(model)
        assert failed or not path.is_symlink(), "used, or replaced by a file"
        assert (mine.read_bytes() if mine.exists() else None) == content


def test_a_link_as_journal_is_refused_even_to_a_journal(model, tmp_path):
    """Otherwise to enroll would write into a file elsewhere."""
    path = model / "journal-1.jsonl"
    mine = shutil.copy(path, tmp_path / "copy.jsonl")
    before = mine.read_bytes()
    path.unlink()
    path.symlink_to(mine)
    with pytest.raises(StoreError, match="symbolic link"), StoredClassifier.open(model, "cpu") as stored:
        stored.enroll("new", picture(8, 0))
    assert mine.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_an_endless_device_is_an_error_at_once(model, name, kind):
    path = place_of(model, name)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    failed = use(model)
    assert failed or not (path.is_fifo() or path.is_symlink()), "an error, or replaced by a file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_photo_that_is_a_pipe_or_a_device(model, tmp_path, capsys):
    os.mkfifo(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").symlink_to("/dev/zero")
    for name in ("a.jpg", "b.jpg"):
        assert call("predict", model, tmp_path / name) == 1
        assert "not a regular file" in "".join(capsys.readouterr())
