"""“Not this”: remembered through files and processes, and answered as if the class were not enrolled."""

import json
from copy import deepcopy

import pytest

from fscil import Classifier
from fscil.classifier import StoredClassifier
from fscil.classifier.model_folder import ModelFolder
from fscil.errors import DataError, StoreError, UnknownClassError
from helpers import NAMES, call, picture

STRANGE = [picture(label, 30) for label in (8, 9, 10, 11)]  # of classes that are not enrolled


def without(model, name):
    other = Classifier.load(model)
    other.forget(name)
    return other


def traces(model, *digests):
    content = b"".join(path.read_bytes() for path in model.rglob("*") if path.is_file())
    return [digest for digest in digests if digest.encode() in content]


def test_answered_as_if_the_class_were_not_enrolled(model):
    before = Classifier.load(model).predict(STRANGE, top=3)
    name = before[0].ranking[0][0]
    with StoredClassifier.open(model) as stored:
        assert stored.reject(name, STRANGE[0]) == 1
        assert stored.reject(name, STRANGE[0]) == 0
        assert stored.classifier.predict(STRANGE[0], top=3) == without(model, name).predict(STRANGE[0], top=3)
    for loaded in (Classifier.load(model), deepcopy(Classifier.load(model))):
        after = loaded.predict(STRANGE, top=3)
        # The same photos at once: torch, where onnxruntime is not installed, rounds a batch otherwise than one photo.
        assert after[0] == without(model, name).predict(STRANGE, top=3)[0]
        assert name not in [label for label, _ in after[0].ranking]
        refused = loaded.gallery.refused(loaded.features(STRANGE), loaded.gallery.scores(loaded.features(STRANGE)))
        for old, new, out in zip(before, after, refused.any(1).tolist(), strict=True):
            assert (new == old) is not out


def test_the_last_class_refused_is_unknown(tmp_path, classifier):
    for name in NAMES[1:8]:
        classifier.forget(name)
    classifier.reject(NAMES[0], STRANGE[0])
    (answer,) = classifier.predict(STRANGE[0])
    assert (answer.label, answer.state, answer.ranking, answer.unknown_probability) == (None, "unknown", (), 1.0)


def test_journal_snapshot_and_schema(model):
    def schema():
        return json.loads((model / "model.json").read_text())["schema"]

    with StoredClassifier.open(model) as stored:
        (shown,) = stored.classifier.photos(STRANGE[0])
        stored.reject("bee", STRANGE[0])
        assert schema() == 2, "in the journal, of which an older version says that it is newer"
        assert [photo.digest for photo in Classifier.load(model).gallery.negatives("bee")] == [shown.digest]
        stored.rename("ant", "emmet")  # writes a snapshot
        assert schema() == 3
        assert ModelFolder(model).read().records == []
    copy = model.parent / "copy.fscil"
    Classifier.load(model).save(copy)
    for place in (model, copy):
        assert [photo.digest for photo in Classifier.load(place).gallery.negatives("bee")] == [shown.digest]
    with StoredClassifier.open(model) as one, StoredClassifier.open(model) as other:
        other.reject("cat", STRANGE[1])
        assert one.refresh()
        assert len(one.classifier.gallery.negatives("cat")) == 1
        one.remove_negative("cat", one.classifier.gallery.negatives("cat")[0].digest)
        one.remove_negative("bee", shown.digest)
    assert schema() == 2
    assert traces(model, shown.digest) == []


@pytest.mark.parametrize("how", ["forget", "remove_negative", "enroll"])
def test_no_trace_is_left(model, how):
    with StoredClassifier.open(model) as stored:
        (shown,) = stored.classifier.photos(STRANGE[0])
        stored.reject("bee", STRANGE[0])
        assert traces(model, shown.digest) == [shown.digest]
        if how == "forget":
            stored.forget("bee")
        elif how == "remove_negative":
            stored.remove_negative("bee", shown.digest)
        else:
            stored.enroll("bee", STRANGE[0])
            assert stored.classifier.gallery.negatives("bee") == ()
            stored.remove_photo("bee", shown.digest)
    assert traces(model, shown.digest) == []


def test_what_cannot_be_rejected_is_not_written(model):
    with StoredClassifier.open(model) as stored:
        before = stored.storage.version()
        with pytest.raises(UnknownClassError):
            stored.reject("no such class", STRANGE[0])
        with pytest.raises(DataError, match="was learned from this photo"):
            stored.reject_photos("bee", stored.classifier.gallery.photos("bee")[:1])
        with pytest.raises(UnknownClassError, match="no negative example"):
            stored.remove_negative("bee", "0" * 64)
        assert stored.storage.version() == before


def test_an_older_version_says_that_it_is_older(model, monkeypatch):
    with StoredClassifier.open(model) as stored:
        stored.reject("bee", STRANGE[0])
        stored.forget("ant")
    monkeypatch.setattr("fscil.classifier.model_folder.manifest.SCHEMA", 2)
    with pytest.raises(StoreError, match="newer fscil"):
        Classifier.load(model)


def test_command_line(model, tmp_path, capsys):
    from PIL import Image

    path = tmp_path / "strange.png"
    Image.fromarray(STRANGE[0]).save(path)
    name = Classifier.load(model).predict(path, top=1)[0].ranking[0][0]
    assert call("reject", model, name, path) == 0
    assert f"{name}: 1 new negative example, 1 in all" in capsys.readouterr().out
    assert Classifier.load(model).predict(path)[0].label != name
    assert call("classes", model, name) == 0
    assert "not this" in capsys.readouterr().out
    assert call("reject", model, name, path, "--undo") == 0
    assert f"{name}: 1 negative example removed" in capsys.readouterr().out
    assert Classifier.load(model).gallery.negatives(name) == ()
    assert call("reject", model, name, path, "--undo") == 1
    assert "no negative example" in capsys.readouterr().err
