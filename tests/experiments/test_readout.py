"""Readouts on one network's features: figures against loops, constants without test images, the command."""

import json

import numpy as np
import pytest
import torch

from fscil.errors import ConfigError, ProtocolError
from fscil.experiments.readout import compare
from fscil.methods.toolkit.readouts import FIXED, READOUTS
from fscil.metrics import harmonic_accuracy
from fscil.protocol import Protocol
from fscil.report.readout_table import readout_table
from fscil.runtime.files import read_json
from helpers import call, sets, write_images

BASE, WAY, SESSIONS = 12, 2, 2
ABOUT = {"data": "made up", "backbone": "none", "protocol": {"base_classes": BASE, "way": WAY, "sessions": SESSIONS}}


@pytest.fixture(scope="module")
def parts():
    """Gaussian classes: train and test features and labels."""
    generator = torch.Generator().manual_seed(0)
    classes = BASE + WAY * SESSIONS
    means = torch.randn(classes, 16, generator=generator)

    def drawn(count):
        labels = torch.arange(classes).repeat_interleave(count)[torch.randperm(classes * count, generator=generator)]
        return means[labels] + torch.randn(len(labels), 16, generator=generator), labels

    (train, train_labels), (test, test_labels) = drawn(10), drawn(6)
    return {"train": train, "train_labels": train_labels, "test": test, "test_labels": test_labels}


@pytest.fixture(scope="module")
def results(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("readout")
    return out, compare(parts, ABOUT, out, [].append, draws=2)


def naive_cosine(parts, draw, shots):
    """Average, base, novel, harmonic of the last session by a loop: nearest mean of all base images by cosine."""
    protocol = Protocol(BASE, WAY, SESSIONS, shots)
    train, labels = parts["train"].double().numpy(), parts["train_labels"].numpy()
    rows = {label: np.flatnonzero(labels == label) for label in range(BASE)}
    for session in (1, 2):
        for row in protocol.samples(labels, session, draw):
            rows.setdefault(int(labels[row]), []).append(row)
    means = np.stack([train[np.asarray(rows[label])].mean(0) for label in range(len(rows))])
    right = {True: [], False: []}
    for feature, label in zip(parts["test"].double().numpy(), parts["test_labels"].tolist(), strict=True):
        cosines = [feature @ mean / np.linalg.norm(feature) / np.linalg.norm(mean) for mean in means]
        right[label < BASE].append(int(np.argmax(cosines)) == label)
    base, novel = np.mean(right[True]), np.mean(right[False])
    return np.mean(right[True] + right[False]), base, novel, harmonic_accuracy(base, novel)


def test_figures_follow_from_the_features(parts, results):
    rows = results[1]["readouts"]["cosine, all"]["walks"]
    assert [(walk["draw"], walk["shots"]) for walk in rows] == [(d, k) for d in ("published", 0, 1) for k in (5, 1)]
    for walk in rows:
        found = [walk[key] for key in ("average", "base", "novel", "harmonic")]
        assert found == pytest.approx(naive_cosine(parts, walk["draw"], walk["shots"]))


def test_all_readouts_are_measured_and_noted(results):
    out, found = results
    names = ["cosine, all", "cosine, balanced", "TEEN", "whitened cosine", "LDA", "FeCAM-like", "RanPAC-like", "PLDA"]
    assert list(found["readouts"]) == names
    assert json.loads((out / "results.json").read_text()) == found
    assert list(json.loads((out / "provenance.json").read_text())["readouts"]) == names
    tried = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert len([trial for trial in tried if trial["readout"] == "TEEN"]) == 8
    lda = [trial for trial in tried if trial["readout"] == "LDA"]
    best = max(lda, key=lambda trial: trial["objective"])
    assert found["readouts"]["LDA"]["constants"] == best["constants"]


def test_constants_are_chosen_without_test_images(parts, results, tmp_path):
    """Nor from any image of a new class."""
    random = torch.Generator().manual_seed(1)
    new = parts["train_labels"] >= BASE
    other = {**parts, "test": torch.randn(parts["test"].shape, generator=random), "train": parts["train"].clone()}
    other["train"][new] = torch.randn(int(new.sum()), 16, generator=random)
    found = compare(other, ABOUT, tmp_path, [].append, draws=0, readouts=["LDA", "PLDA"])
    for name, row in found["readouts"].items():
        assert row["constants"] == results[1]["readouts"][name]["constants"]
        assert row["walks"][0]["average"] != results[1]["readouts"][name]["walks"][0]["average"]


def test_gains_are_paired(results):
    text = readout_table(results[1], read_json(results[0] / "provenance.json"))
    line = next(line for line in text.splitlines() if line.startswith("| LDA "))
    rows = {name: [w for w in row["walks"] if w["shots"] == 5] for name, row in results[1]["readouts"].items()}
    gains = [
        100 * (mine["harmonic"] - theirs["harmonic"])
        for mine, theirs in zip(rows["LDA"], rows["cosine, balanced"], strict=True)
        if mine["draw"] != "published"
    ]
    half = 12.706 * np.std(gains, ddof=1) / 2**0.5  # Student's t, one degree of freedom
    assert line.split(" | ")[7] == f"{np.mean(gains):+.1f} ± {half:.1f}"


def test_what_is_there_is_kept_and_other_draws_are_measured_with_the_constants_chosen_before(parts, tmp_path):
    def run(draws, **options):
        said = []
        return compare(parts, ABOUT, tmp_path, said.append, draws=draws, readouts=["LDA"], **options), said

    first, _ = run(1)
    trials, notes = ((tmp_path / name).read_bytes() for name in ("trials.jsonl", "provenance.json"))
    again, said = run(1)
    assert again == first
    assert said == ["LDA: measured before"]
    assert (tmp_path / "provenance.json").read_bytes() == notes
    more, said = run(2)
    assert said[0].startswith("LDA: {")
    row, before = more["readouts"]["LDA"], first["readouts"]["LDA"]
    assert row["constants"] == before["constants"]
    assert [walk for walk in row["walks"] if walk["draw"] != 1] == before["walks"]
    assert (tmp_path / "trials.jsonl").read_bytes() == trials, "constants are chosen once"
    given, _ = run(2, constants={"LDA": {"shrinkage": 0.123}})
    assert (given["readouts"]["LDA"]["constants"], given["readouts"]["LDA"]["how"]) == ({"shrinkage": 0.123}, "given")


def test_the_table_says_how_it_was_made(parts, tmp_path):
    about = {**ABOUT, "data_fingerprint": "0123456789abcdef" * 4}
    found = compare(parts, about, tmp_path, [].append, draws=0, readouts=["cosine, balanced", "LDA"])
    notes = read_json(tmp_path / "provenance.json")["readouts"]["LDA"]
    text = readout_table(found, read_json(tmp_path / "provenance.json"))
    assert "- features of made up, none, images (SHA-256) 0123456789abcdef; " in text
    line = next(line for line in text.splitlines() if line.endswith("): cosine, balanced; LDA"))
    told = (notes["command"], *(notes["machine"][key] for key in ("fscil", "torch", "python", "cpu")))
    assert [part for part in told if part not in line] == []


def test_what_cannot_be_compared_is_refused(parts, results, tmp_path):
    with pytest.raises(ConfigError, match='no readout named "nearest"'):
        compare(parts, ABOUT, tmp_path, [].append, readouts=["nearest"])
    with pytest.raises(ConfigError, match="holds readouts of other features"):
        compare(parts, {**ABOUT, "data": "others"}, results[0], [].append)
    few = {**parts, "train_labels": parts["train_labels"] * 2}
    with pytest.raises(ProtocolError, match="4 base classes of 9 training images"):
        compare(few, ABOUT, tmp_path, [].append)


def test_the_command(tmp_path, capsys):
    photos = write_images(tmp_path / "photos", train=10, test=2)
    settings = ("train.epochs=1", "protocol.base_classes=8")
    assert call("train", "folder", "--data", photos, "--out", tmp_path / "run", "--quiet", *sets(*settings)) == 0
    assert call("study", "readout", tmp_path / "run", "--draws", "1", "--quiet") == 0
    assert "| whitened cosine |" in capsys.readouterr().out
    assert "### 1-shot" in (tmp_path / "run/readout/table.md").read_text()
    assert call("study", "readout", tmp_path / "run", "--draws", "0", "--shots", "1", "--out", tmp_path / "one") == 0
    walks = [walk for one in read_json(tmp_path / "one/results.json")["readouts"].values() for walk in one["walks"]]
    assert {walk["draw"] for walk in walks} == {"published"}, "and not the ten draws of the default"
    assert call("study", "readout", tmp_path / "run", "--set", "train.epochs=2") == 2


def test_scores_of_a_class_depend_on_no_other_class_where_a_readout_says_so(parts):
    """Then the sessions are columns of one computation."""
    base = parts["train_labels"] < BASE
    novel = torch.stack([parts["train"][parts["train_labels"] == label][:5] for label in range(BASE, BASE + 4)])
    for name, kind in READOUTS.items():
        readout = kind(**FIXED.get(name, {}))
        readout.fit(parts["train"][base], parts["train_labels"][base])
        alone, together = (readout.scores(parts["test"], novel[:count])[:, : BASE + 2] for count in (2, 4))
        assert torch.allclose(alone, together, atol=1e-5) == readout.classes_are_independent, name
