"""A classifier bound to its folder: changes are on disk before the call returns, those of others come by refresh."""

import json
import threading
from dataclasses import replace

import pytest
import torch
from PIL import Image

from fscil import Classifier
from fscil.classifier import StoredClassifier, Thresholds
from fscil.classifier.encoder import PhotoEncoder
from fscil.classifier.model_folder import Changed, ModelFolder
from fscil.classifier.storage import folder as folder_storage
from fscil.errors import ClassNameError, ConfigError, DataError, FscilWarning, StoreError, UnknownClassError
from fscil.gallery import Photo
from helpers import NAMES, picture

NEW = [picture(9, seed) for seed in range(4)]
# The tiny network hardly distinguishes its classes; tests/classifier/test_doubts.py is about that warning.
pytestmark = pytest.mark.filterwarnings("ignore:.*can hardly be distinguished")


def others(photos, mark):
    """Photos that look the same and are not."""
    return [replace(photo, digest=f"{mark} {photo.digest}") for photo in photos]


def traces(model, *marks):
    """Which of these byte strings are in any file of the model."""
    content = b"".join(path.read_bytes() for path in model.rglob("*") if path.is_file())
    return [mark for mark in marks if mark in content]


def test_what_is_enrolled_is_on_disk_at_once(model):
    with StoredClassifier.open(model) as mine:
        assert mine.enroll("new", NEW[:2]) == 2
        there = Classifier.load(model)
        assert there.gallery.info("new") == mine.classifier.gallery.info("new")
        torch.testing.assert_close(there.gallery.prototypes, mine.classifier.gallery.prototypes)
        assert mine.enroll("new", NEW[:3]) == 1
        assert mine.enroll("new", NEW[:3]) == 0
        assert Classifier.load(model).gallery.info("new").photos == 3


def test_the_same_photo_again_writes_nothing(model):
    with StoredClassifier.open(model) as mine:
        mine.enroll("new", NEW)
        before = ModelFolder(model).version()
        mine.enroll("new", NEW)
    assert ModelFolder(model).version() == before


def test_prepared_photos_for_a_server(model):
    with StoredClassifier.open(model) as mine:
        photos = mine.classifier.photos(NEW[:2])
        assert mine.enroll_photos("new", [*photos, photos[0]]) == 2
        assert mine.classifier.predict(NEW[0])[0].ranking == Classifier.load(model).predict(NEW[0])[0].ranking


def test_what_cannot_be_learned_never_reaches_the_journal(model):
    dim = Classifier.load(model).encoder.dim
    with StoredClassifier.open(model) as mine:
        before = mine.storage.version()
        for name, photos, error in (
            ("new", [], DataError),
            ("\n", [Photo("d", torch.ones(dim), "x", "2026")], ClassNameError),
            ("new", [Photo("d", torch.full((dim,), torch.nan), "x", "2026")], DataError),
            ("new", [Photo("d", torch.ones(dim + 1), "x", "2026")], ValueError),
        ):
            with pytest.raises(error):
                mine.enroll_photos(name, photos)
        assert mine.storage.version() == before


def test_forgetting_removes_every_trace(model, tmp_path):
    secret = tmp_path / "secret-path.png"
    Image.fromarray(NEW[0]).save(secret)
    with StoredClassifier.open(model) as mine:
        mine.enroll("private", [secret, NEW[1]])
        photos = mine.classifier.gallery.photos("private")
        marks = [b"private", b"secret-path", *(photo.digest.encode() for photo in photos)]
        assert traces(model, *marks) == marks
        mine.forget("private")
        assert "private" not in mine.classifier.gallery
        assert traces(model, *marks, photos[0].thumbnail, photos[0].feature.numpy().tobytes()) == []
        with pytest.raises(UnknownClassError):
            mine.forget("private")
        assert mine.enroll("private", secret) == 1


def test_changes_of_others_come_with_refresh(model):
    with StoredClassifier.open(model) as mine, StoredClassifier.open(model) as yours:
        yours.enroll("yours", NEW[:2])
        assert "yours" not in mine.classifier.gallery
        assert mine.refresh()
        assert mine.classifier.gallery.info("yours") == yours.classifier.gallery.info("yours")
        assert not mine.refresh()
        yours.forget("ant")
        mine.enroll_photos("mine", mine.classifier.photos(NEW[2:]))  # reads the changes of others first
        assert "ant" not in mine.classifier.gallery
        yours.refresh()
        assert yours.classifier.gallery.names == mine.classifier.gallery.names == Classifier.load(model).gallery.names


def test_another_network_in_the_same_folder(model, fitted):
    with StoredClassifier.open(model) as mine:
        other = Classifier(fitted[0].encoder)
        other.enroll("only", NEW)
        other.save(model, force=True)
        assert mine.refresh()
        assert mine.classifier.gallery.names == ("only",)


def retrained(classifier):
    """The same classes with a network of other weights."""
    config = classifier.encoder.config
    torch.manual_seed(7)
    other = Classifier(PhotoEncoder(config, config.build(), classifier.encoder.device))
    other.enroll("ant", NEW)
    return other


@pytest.mark.parametrize("act", ["enroll", "forget"])
def test_features_of_one_network_never_join_those_of_another(model, act):
    """Somebody replaces the model between two calls, or while a photo is being encoded."""
    with StoredClassifier.open(model) as mine:
        photos = mine.classifier.photos(NEW[:1])
        retrained(mine.classifier).save(model, force=True)
        before = ModelFolder(model).version()
        with pytest.raises(StoreError, match="replaced the network"):
            mine.enroll_photos("new", photos) if act == "enroll" else mine.forget("ant")
        assert ModelFolder(model).version() == before


def test_changes_of_others_do_not_build_the_network_again(model):
    with StoredClassifier.open(model) as mine, StoredClassifier.open(model) as yours:
        encoder = mine.classifier.encoder
        yours.forget("ant")
        assert mine.refresh()
        assert mine.classifier.encoder is encoder
        assert mine.enroll("new", NEW) == 4


def test_a_threshold_is_stored(model, held_out):
    with StoredClassifier.open(model) as mine:
        mine.enroll("new", NEW)
        found = mine.calibrate(held_out, 0.2)
        assert mine.classifier.calibration == found
        assert "new" in mine.classifier.gallery
    there = Classifier.load(model)
    assert there.calibration == found
    assert "new" in there.gallery
    with StoredClassifier.open(model) as mine, pytest.warns(FscilWarning, match="only 9 classes"):
        mine.calibrate()


@pytest.mark.parametrize("again", [False, True], ids=["from class means", "again"])
def test_a_threshold_is_not_stored_for_scores_of_another_rule(by_cosine, tmp_path, again):
    """Somebody upgrades the model while the photos are scored."""
    by_cosine.save(tmp_path / "model")
    with StoredClassifier.open(tmp_path / "model") as mine, StoredClassifier.open(tmp_path / "model") as yours:
        if again:
            yours.upgrade()
            yours.enroll("new", NEW)
        find = mine.classifier.find_threshold

        def meanwhile(*arguments):
            found = find(*arguments)
            yours.upgrade()
            return found

        mine.classifier.find_threshold = meanwhile
        with pytest.warns(FscilWarning, match="classes"), pytest.raises(ConfigError, match="Calibrate again"):
            mine.calibrate()
        assert mine.classifier.gallery.rule.name == "two_covariance"
    assert Classifier.load(tmp_path / "model").calibration is None


def test_a_threshold_in_memory_is_not_for_scores_of_another_rule(by_cosine, monkeypatch):
    find = by_cosine.find_threshold

    def meanwhile(*arguments):
        found = find(*arguments)
        by_cosine.estimate()
        return found

    monkeypatch.setattr(by_cosine, "find_threshold", meanwhile)
    with pytest.warns(FscilWarning, match="classes"), pytest.raises(ConfigError, match="Calibrate again"):
        by_cosine.calibrate()
    assert by_cosine.calibration is None


def test_a_long_journal_becomes_a_snapshot(model, monkeypatch):
    monkeypatch.setattr(folder_storage, "MAX_JOURNAL", 8)
    with StoredClassifier.open(model) as mine:
        photos = mine.classifier.photos(NEW)
        longest = 0
        for number in range(100):
            mine.enroll_photos(f"class {number}", others(photos[:2], number))
            longest = max(longest, len(ModelFolder(model).read().records))
        names, version = mine.classifier.gallery.names, mine.storage.version()
    assert version.generation > 2
    assert longest < 100
    there = Classifier.load(model)
    assert there.gallery.names == names
    assert {f"class {number}" for number in range(100)} <= {*names}
    with StoredClassifier.open(model) as mine:
        assert not mine.refresh()


def test_an_enrollment_counts_though_there_is_no_room_for_a_snapshot(fitted, tmp_path, monkeypatch):
    def full(*_):
        raise StoreError("no space left on the device")

    model = tmp_path / "empty.fscil"
    Classifier(fitted[0].encoder).save(model)
    monkeypatch.setattr(folder_storage, "MAX_JOURNAL", 1)
    with StoredClassifier.open(model) as mine:
        photos = mine.classifier.photos(NEW)
        mine.enroll_photos("old", photos)
        with monkeypatch.context() as patch:
            patch.setattr(ModelFolder, "compact", full)
            with pytest.warns(FscilWarning, match="nothing is lost"):
                assert mine.enroll_photos("new", others(photos, "new")) == 4
        assert Classifier.load(model).gallery.info("new").photos == 4
        assert mine.enroll_photos("newer", others(photos, "newer")) == 4
        assert [record["name"] for record in mine.storage.read().records] == ["newer"]


def test_while_a_server_has_it_others_get_an_error(model):
    with StoredClassifier.open(model, serving=True) as mine:
        assert mine.enroll("new", NEW) == 4
        mine.forget("ant")
        second = StoredClassifier.open(model, serving=True)
        with pytest.raises(StoreError, match="a server is using this model"), second:
            pass
    with StoredClassifier.open(model) as mine:
        assert "new" in mine.classifier.gallery


def test_many_threads_enroll_and_ask(model):
    with StoredClassifier.open(model) as mine:
        photos = mine.classifier.photos([picture(label, 40) for label in range(12)])
        features = torch.stack([photo.feature for photo in photos])
        failed = []

        def work(number):
            try:
                for step in range(6):
                    mine.enroll_photos(f"{number} {step}", others(photos[step : step + 2], f"{number} {step}"))
                    assert len(mine.classifier.predict_features(features, 2)) == 12
                    if step % 3 == 2:
                        mine.forget(f"{number} {step}")
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        wanted = {f"{number} {step}" for number in range(4) for step in (0, 1, 3, 4)} | {*NAMES[:8]}
        assert {*mine.classifier.gallery.names} == wanted
    assert {*Classifier.load(model).gallery.names} == wanted


def test_a_model_of_schema_1_is_upgraded_in_place(by_cosine, tmp_path):
    """The journal is taken into account, others see the change, and it goes on learning under the new rule."""
    model = tmp_path / "old.fscil"
    by_cosine.save(model)
    assert json.loads((model / "model.json").read_text())["schema"] == 1
    with StoredClassifier.open(model) as mine, StoredClassifier.open(model) as yours:
        yours.enroll("new", NEW[:3])
        found = mine.upgrade()
        assert found.made["classes"] == len(yours.classifier.gallery)
        assert yours.refresh()
        manifest = json.loads((model / "model.json").read_text())
        assert manifest["schema"] == 2
        assert sorted(manifest["files"]) == ["decision", "gallery", "weights"]
        there = Classifier.load(model)
        assert there.made["decision"] == found.made
        assert there.predict(NEW[0]) == mine.classifier.predict(NEW[0]) == yours.classifier.predict(NEW[0])
        assert there.predict(NEW[0])[0].probability is not None
        decision = manifest["files"]["decision"]["name"]
        yours.enroll_photos("new", yours.classifier.photos(NEW[3]))
        yours.forget("ant")
        assert json.loads((model / "model.json").read_text())["files"]["decision"]["name"] == decision
        assert Classifier.load(model).predict(NEW[3]) == yours.classifier.predict(NEW[3])


def test_too_few_photos_to_upgrade_with(fitted, tmp_path):
    model = tmp_path / "few.fscil"
    few = Classifier(fitted[0].encoder)
    few.enroll("one", NEW[:3])
    few.enroll("two", NEW[3])
    few.save(model)
    before = ModelFolder(model).version()
    with StoredClassifier.open(model) as mine, pytest.raises(DataError, match="only one class has two photos"):
        mine.upgrade()
    assert ModelFolder(model).version() == before


def test_a_damaged_decision_rule_is_refused(model):
    (file,) = model.glob("decision-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="checksum is wrong"):
        Classifier.load(model)
    file.unlink()
    with pytest.raises(StoreError, match="no such file"):
        Classifier.load(model)


def test_the_prior_and_the_threshold_are_stored(model, held_out):
    with StoredClassifier.open(model) as mine:
        mine.set_unknown_prior(0.15)
        mine.calibrate(held_out)
        assert Classifier.load(model).decision == mine.classifier.decision
        assert mine.classifier.decision.unknown_prior == 0.15
        mine.uncalibrate()
        assert Classifier.load(model).calibration is None
        with pytest.raises(ConfigError, match="unknown prior of 1"):
            mine.set_unknown_prior(1)
        assert Classifier.load(model).decision.unknown_prior == 0.15


def test_thresholds_are_stored_and_an_old_model_has_no_maybe(model, held_out):
    with StoredClassifier.open(model) as mine:
        mine.calibrate(held_out)
        mine.set_thresholds(known=0.9)
        assert mine.classifier.calibration is not None
        mine.set_thresholds(unknown=0.25)
        assert mine.classifier.calibration is None
        assert Classifier.load(model).thresholds == Thresholds(known=0.9, unknown=0.25)
        for wrong in ({"known": 1.5}, {"known": -0.1}, {"unknown": 0}, {"unknown": float("nan")}):
            with pytest.raises(ConfigError, match="is not possible"):
                mine.set_thresholds(**wrong)
        folder, about = mine.storage.folder, Classifier.load(model).about()
    del about["decision"]["thresholds"]  # as it was written before there were any
    folder.compact(lambda contents: Changed(about, contents.snapshot))
    assert Classifier.load(model).thresholds == Thresholds(known=0.0, unknown=0.5)


def digests(classifier, name):
    return {photo.digest for photo in classifier.gallery.photos(name)}


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "stored"])
def test_a_photo_that_is_taught_another_name_moves(model, in_memory):
    with StoredClassifier.open(model) as mine:
        target = mine.classifier if in_memory else mine
        target.enroll("new", NEW)
        assert target.enroll("other", NEW[:1]) == 1
        assert {photo.digest for photo in mine.classifier.photos(NEW[1:])} == digests(mine.classifier, "new")
        assert target.enroll("other", NEW) == 3  # and a class without photos is gone
        assert "new" not in mine.classifier.gallery
        assert len(digests(mine.classifier, "other")) == 4
        if not in_memory:
            assert digests(Classifier.load(model), "other") == digests(mine.classifier, "other")


def test_after_a_crash_between_enrolling_and_removing_the_same_call_goes_on(model):
    """The journal has the enrollment, the photo is still under its old name as well."""
    with StoredClassifier.open(model) as mine:
        mine.enroll("new", NEW)
        photos = mine.classifier.photos(NEW[:2])
        mine.storage.folder.append(mine.classifier.gallery.record("other", photos))
    with StoredClassifier.open(model) as mine:
        assert digests(mine.classifier, "other") < digests(mine.classifier, "new")
        assert mine.enroll("other", NEW[:2]) == 0
        assert not digests(mine.classifier, "other") & digests(mine.classifier, "new")
    assert not digests(Classifier.load(model), "other") & digests(Classifier.load(model), "new")


@pytest.mark.parametrize("name", [".", "..", " . ", "  .."])
def test_names_that_are_folders_are_refused_everywhere(model, tmp_path, name):
    with StoredClassifier.open(model) as mine:
        for refused in (
            lambda: mine.enroll(name, NEW),
            lambda: mine.enroll_photos(name, mine.classifier.photos(NEW[:1])),
            lambda: mine.rename(NAMES[0], name),
            lambda: mine.classifier.enroll(name, NEW),
            lambda: mine.classifier.rename(NAMES[0], name),
        ):
            with pytest.raises(ClassNameError, match="means a folder"):
                refused()
    assert name.strip() not in Classifier.load(model).gallery
