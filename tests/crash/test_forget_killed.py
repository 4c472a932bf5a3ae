"""`forget`, killed at any moment or unable to remove a file: repeated, nothing of the photos is left anywhere."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from fscil.classifier import Classifier, StoredClassifier
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.data.images import Resize
from fscil.errors import StoreError, UnknownClassError
from fscil.models import build_backbone
from fscil.preprocess import Preprocess
from helpers import SIZE, call, picture

# Forgets a class once for every step it takes on the disk, on a fresh copy each time, and dies before that step.
FORGET = """
import io, os, shutil, signal, sys
from fscil.classifier import StoredClassifier

def dying(step, left):
    def wrapper(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args, **kwargs)
    return wrapper

for number in range(1000):
    copy = shutil.copytree(sys.argv[1], f"{sys.argv[2]}/{number}")
    child = os.fork()
    if not child:
        with StoredClassifier.open(copy, "cpu") as stored:
            left = [number]
            for module, name in ((io, "open"), (os, "open"), (os, "fsync"), (os, "replace"), (os, "unlink")):
                setattr(module, name, dying(getattr(module, name), left))
            stored.forget("secret")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        print(number)
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two classes in the snapshot, one of them and a third in the journal."""
    torch.manual_seed(0)
    options = {"stem": "cifar", "width": 2}
    config = EncoderConfig("resnet18", options, Resize(SIZE), Preprocess(SIZE))
    classifier = Classifier(PhotoEncoder(config, build_backbone("resnet18", **options), torch.device("cpu")))
    for label, name in enumerate(("ant", "secret")):
        classifier.enroll(name, [picture(label, seed) for seed in range(2)])
    path = tmp_path_factory.mktemp("models") / "model.fscil"
    classifier.save(path)
    with StoredClassifier.open(path, "cpu") as stored:
        stored.enroll("secret", picture(1, 7))
        stored.enroll("bee", picture(2, 0))
    return path


def traces(model):
    """Files that hold the name, or the digest of a photo, of the class."""
    digests = [photo.digest for photo in Classifier.load(traces.whole).gallery.photos("secret")]
    assert len(digests) == 3
    words = [word.encode() for word in ("secret", *digests)]
    return [path.name for path in model.iterdir() if any(word in path.read_bytes() for word in words)]


@pytest.fixture(autouse=True)
def whole(model):
    traces.whole = model


def test_killed_before_every_step_and_repeated(model, tmp_path):
    done = subprocess.run([sys.executable, "-c", FORGET, model, tmp_path], capture_output=True, text=True, check=True)
    steps, outcomes = int(done.stdout), []
    assert steps > 20
    assert traces(tmp_path / str(steps)) == []
    for number in range(steps):
        copy = tmp_path / str(number)
        left = bool(traces(copy))
        with StoredClassifier.open(copy, "cpu") as stored:
            forgotten = "secret" not in stored.classifier.gallery
            outcomes.append((forgotten, left))
            if forgotten:
                assert traces(copy) == [], "opening it removes what was left"
                with pytest.raises(UnknownClassError):
                    stored.forget("secret")
            else:
                stored.forget("secret")
        assert traces(copy) == []
        assert [info.name for info in Classifier.load(copy, "cpu").classes()] == ["ant", "bee"]
    assert outcomes == sorted(outcomes, key=lambda outcome: outcome[0])
    assert outcomes.count((True, True)) >= 3, "killed between the new model.json and the end of the old files"


def test_no_such_class_is_said_only_when_nothing_is_left(model, tmp_path, capsys):
    """As after a kill, but while the model is open."""
    copy = shutil.copytree(model, tmp_path / "model")
    with StoredClassifier.open(copy, "cpu") as stored:
        stored.forget("secret")
        shutil.copy(model / "journal-1.jsonl", copy)
        assert traces(copy) == ["journal-1.jsonl"]
        with pytest.raises(UnknownClassError):
            stored.forget("secret")
    assert traces(copy) == []
    assert call("forget", copy, "secret") == 1
    assert 'no class "secret"' in capsys.readouterr().err


def test_not_acknowledged_where_a_file_cannot_be_removed(model, tmp_path, monkeypatch):
    copy = shutil.copytree(model, tmp_path / "model")
    unlink = os.unlink

    def refused(path, **options):
        if os.fspath(path).endswith("journal-1.jsonl"):
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, **options)

    with StoredClassifier.open(copy, "cpu") as stored:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refused)
            for _ in range(2):
                with pytest.raises(StoreError, match=r"journal-1\.jsonl: cannot be removed \(Operation not permitted"):
                    stored.forget("secret")
                assert "secret" not in stored.classifier.gallery  # nor is it answered any more
            assert traces(copy) == ["journal-1.jsonl"]
            stored.enroll("bee", picture(2, 1))  # does not depend on it
        with pytest.raises(UnknownClassError):
            stored.forget("secret")
        assert len(stored.classifier.gallery.photos("bee")) == 2
    assert traces(copy) == []
