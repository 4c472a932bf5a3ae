"""From images to results.json: every figure recomputed from the predictions, the predictions from the images."""

import csv
import json
import math
import os
import re
import shutil
import statistics
import sys
from dataclasses import replace
from unicodedata import normalize

import numpy as np
import pytest
import torch
from PIL import Image

from fscil.config import load_recipe, override
from fscil.data.images import ArrayPixels, Dataset, Images
from fscil.errors import ConfigError, DataError, ProtocolError, StoreError
from fscil.experiments import run as experiments
from fscil.experiments import sessions
from fscil.experiments.provenance import read_results
from fscil.experiments.results import departures_from_paper
from fscil.methods import METHODS, Alice
from fscil.models import Backbone, build_backbone
from fscil.openset import SCORES
from fscil.protocol import Protocol, published_draw
from fscil.report import MEASURES, run_tables
from fscil.runtime.files import load_tensors
from fscil.training.base_training import new_base_network, train_base_network
from fscil.training.build import base_images, protocol_of
from fscil.training.context import Context
from fscil.training.loop import Trainer
from fscil.training.run_folder import Run
from grids import groups
from helpers import NAMES, SIZE, part, small_config, tiny_dataset, write_images

CPU = Context.on("cpu", quiet=True)
ORDER = ("鹿", "ant", "lynx", "dög", "bee", "hen", "eel", "cat", "koala", "fox", "ibis")  # without gnu
CONFIG = small_config(f"protocol.order={json.dumps(ORDER, ensure_ascii=False)}", "train.epochs=3")


def train(config, folder, root, say=lambda text: None):
    run = Run.create(folder, config, {"data": str(root)})
    experiments.train(config, run, root, CPU, say)
    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("animals"))


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "run", images)


@pytest.fixture
def run(trained, tmp_path):
    """A finished run of the test's own."""
    return Run.open(shutil.copytree(trained.folder, tmp_path / "run"))


@pytest.fixture(scope="module")
def evaluated(trained, images, tmp_path_factory):
    """A run evaluated under the published draw and its results."""
    run = Run.open(shutil.copytree(trained.folder, tmp_path_factory.mktemp("evaluated") / "run"))
    return run, experiments.evaluate(run, images, CPU)


# Figures from predictions


def naive_scores(predicted, target, base_classes):
    right = [p == t for p, t in zip(predicted, target, strict=True)]

    def share(wanted):
        hits = [hit for hit, t in zip(right, target, strict=True) if wanted(t)]
        return sum(hits) / len(hits) if hits else None

    base, novel = share(lambda t: t < base_classes), share(lambda t: t >= base_classes)
    per_class = [share(lambda t, label=label: t == label) for label in sorted(set(target))]
    harmonic = None
    if novel is not None:
        harmonic = 2 * base * novel / (base + novel) if base + novel else 0.0
    return {
        "average": sum(right) / len(right),
        "base": base,
        "novel": novel,
        "harmonic": harmonic,
        "class_mean": sum(per_class) / len(per_class),
    }


def check_against_predictions(run, results):
    predictions, about = load_tensors(run.folder / "predictions.safetensors")
    base_classes = results["protocol"]["base_classes"]
    for walk in results["walks"]:
        averages = []
        for step in walk["sessions"]:
            target = predictions[f"target.session-{step['session']}"].tolist()
            predicted = predictions[f"{walk['shots']}-shot.draw-{walk['draw']}.session-{step['session']}"].tolist()
            expected = naive_scores(predicted, target, base_classes)
            for measure, value in expected.items():
                assert step[measure] == (None if value is None else pytest.approx(value, abs=1e-12)), measure
            assert step["images"] == len(target)
            averages.append(expected["average"])
        assert walk["pd"] == pytest.approx(averages[0] - averages[-1], abs=1e-12)
    return predictions, about


def test_every_figure_follows_from_the_predictions(evaluated):
    run, results = evaluated
    assert [(walk["shots"], walk["draw"]) for walk in results["walks"]] == [(2, 0), (1, 0)]
    _, about = check_against_predictions(run, results)
    assert about["classes"] == list(ORDER[:10])
    written = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    assert written["walks"] == results["walks"]
    assert results == read_results(run.folder)
    assert [step["classes"] for step in results["walks"][0]["sessions"]] == [6, 8, 10]


def test_the_table_is_that_of_the_predictions(run, images):
    """Mean and interval over draws, from the predictions to the printed cell."""
    results = experiments.evaluate(run, images, CPU, shots=(1,), draws=4)
    assert [walk["draw"] for walk in results["walks"]] == [0, 1, 2, 3]
    predictions, _ = check_against_predictions(run, results)
    (table,) = run_tables(results)
    student = 3.182446305284263  # 97.5% point of Student's t with 3 degrees of freedom
    for measure, name in MEASURES.items():
        row = groups(table)[name][0]
        for session in range(3):
            scores = [
                naive_scores(
                    predictions[f"1-shot.draw-{draw}.session-{session}"].tolist(),
                    predictions[f"target.session-{session}"].tolist(),
                    6,
                )[measure]
                for draw in range(4)
            ]
            if scores[0] is None:
                assert row[1 + session] == "-"
            elif session == 0:  # draws do not touch it
                assert float(row[1]) == pytest.approx(100 * scores[0], abs=0.05 + 1e-9)
            else:
                interval = student * statistics.stdev(scores) / 2
                printed = re.fullmatch(r"(\d+\.\d) ±(\d+\.\d)", row[1 + session]).groups()
                # Rounded to a tenth; which way 18.75 goes depends on the last bit.
                expected = 100 * statistics.mean(scores), 100 * interval
                assert tuple(map(float, printed)) == pytest.approx(expected, abs=0.05 + 1e-9)
    assert len({tuple(predictions[f"1-shot.draw-{draw}.session-2"].tolist()) for draw in range(4)}) > 1


def test_confusion_matrices_count_the_last_sessions_predictions(evaluated):
    run, _ = evaluated
    predictions, _ = load_tensors(run.folder / "predictions.safetensors")
    for shots in (2, 1):
        with (run.folder / f"confusion-{shots}-shot.csv").open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        assert header[1:] == list(ORDER[:10])
        expected = np.zeros((10, 10), int)
        target, predicted = predictions["target.session-2"], predictions[f"{shots}-shot.draw-0.session-2"]
        for truth, guess in zip(target.tolist(), predicted.tolist(), strict=True):
            expected[truth, guess] += 1
        assert [row[0] for row in rows] == list(ORDER[:10])
        assert [[int(cell) for cell in row[1:]] for row in rows] == expected.tolist()


# Predictions from images


def features_by_hand(backbone, path):
    pixels = np.asarray(Image.open(path), np.float64) / 255
    ready = (pixels - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    with torch.no_grad():
        return backbone(torch.from_numpy(ready.transpose(2, 0, 1)[None].astype(np.float32)))[0].double().numpy()


def cosine(a, b):
    return a @ b / math.sqrt((a @ a) * (b @ b))


def test_predictions_follow_from_the_files(run, images):
    """Without any part of fscil but the network: PNG files, trained weights, class means in loops."""
    experiments.evaluate(run, images, CPU, shots=(2,))
    predictions, _ = load_tensors(run.folder / "predictions.safetensors")
    backbone = build_backbone("resnet18", width=2)
    backbone.load_state_dict(load_tensors(run.weights)[0])
    backbone.eval()

    def features(part, name):
        return [features_by_hand(backbone, path) for path in sorted((images / part / name).iterdir())]

    train = {name: features("train", name) for name in ORDER[:10]}
    test = {name: features("test", name) for name in ORDER[:10]}
    means = {name: sum(found) / len(found) for name, found in train.items()}
    nearest = {}
    for name in ORDER[:6]:
        ranked = sorted(range(6), key=lambda i, name=name: -cosine(train[name][i], means[name]))
        nearest[name] = (train[name][ranked[0]] + train[name][ranked[1]]) / 2
    for session, known in ((0, 6), (1, 8), (2, 10)):
        prototypes = []
        for place, name in enumerate(ORDER[:known]):
            if place < 6:
                prototypes.append(means[name] if session == 0 else nearest[name])
            else:
                ranks = np.random.default_rng([0, place]).permutation(6)[:2]
                prototypes.append((train[name][ranks[0]] + train[name][ranks[1]]) / 2)
        expected = []
        for name in sorted(ORDER[:known]):  # the order of the files
            for feature in test[name]:
                cosines = [cosine(feature, prototype) for prototype in prototypes]
                expected.append((ORDER.index(name), int(np.argmax(cosines))))
        found = zip(
            predictions[f"target.session-{session}"].tolist(),
            predictions[f"2-shot.draw-0.session-{session}"].tolist(),
            strict=True,
        )
        assert list(found) == expected


def test_the_published_draw_is_the_default_of_benchmarks():
    assert load_recipe("cifar100").protocol.draw == "published"
    dataset = tiny_dataset()
    protocol = Protocol(6, 2, 3, shots=2)
    members = np.flatnonzero(dataset.train.labels == 6)
    chosen = protocol.samples(dataset.train.labels, 1, "published")
    assert chosen[:2].tolist() == [int(members[rank]) for rank in published_draw(6, 2)]


# Options of evaluate


def test_all_prototypes(run, images):
    before = run.config()
    results = experiments.evaluate(run, images, CPU, prototypes="all")
    assert results["prototypes"] == "all"
    check_against_predictions(run, results)
    assert all(step["alternatives"] == {} for walk in results["walks"] for step in walk["sessions"])
    assert Run.open(run.folder).config() == before, "the run's own recipe is not touched"
    assert before == replace(CONFIG, protocol=replace(CONFIG.protocol, sessions=2)), "but for what the data settled"


def test_balanced_session_0_stands_beside(evaluated):
    _, results = evaluated
    first = results["walks"][0]["sessions"][0]
    assert list(first["alternatives"]) == ["balanced, 2-shot", "balanced, 1-shot"]
    assert all(0 <= value <= 1 for value in first["alternatives"].values())
    assert results["walks"][1]["sessions"][0] == first


def test_unknown_images_are_judged_when_asked_for(run, images, evaluated):
    results = experiments.evaluate(run, images, CPU, openset=True)
    assert json.loads((run.folder / "results.json").read_text(encoding="utf-8"))["walks"][0]["sessions"][0]["openset"]
    for with_, without in zip(results["walks"], evaluated[1]["walks"], strict=True):
        found = [step.pop("openset", None) for step in with_["sessions"]]
        assert with_ == without
        assert found[-1] is None, "after the last session no class is unknown"
        assert len(found) == 3
        for step in found[:-1]:
            assert step.keys() == SCORES.keys()
            for figures in step.values():
                assert figures.keys() == {"auroc", "fpr95", "oscr"}
                assert all(0 <= value <= 1 for value in figures.values())
                assert figures["oscr"] <= figures["auroc"]


def test_identical_evaluations_write_identical_files(run, images, evaluated):
    """Also where the run lies elsewhere; what differs from one to the next is in provenance.json."""
    experiments.evaluate(run, images, CPU)
    for name in ("results.json", "predictions.safetensors", "confusion-2-shot.csv"):
        assert (run.folder / name).read_bytes() == (evaluated[0].folder / name).read_bytes(), name
    results = read_results(run.folder)
    assert results["classes"] == list(ORDER[:10])
    assert results["settings"]["train.epochs"] == 3
    assert results["machine"]["cpu"]


def test_another_method_on_the_runs_network(run, images, evaluated):
    results = experiments.evaluate(run, images, CPU, changes=["method=alice_plda"], out=run.folder / "plda")
    assert results["method"] == "alice_plda"
    assert results["settings"]["method"] == "alice_plda"
    assert read_results(run.folder / "plda") == results
    assert not (run.folder / "results.json").exists()
    with pytest.raises(ConfigError, match=r"trained otherwise.*views\.kind = resized there, crops here"):
        experiments.evaluate(run, images, CPU, changes=["method=finetune"])
    with pytest.raises(ConfigError, match=r"loss\.margin = 0\.4 there, 0\.1 here"):
        experiments.evaluate(run, images, CPU, changes=["loss.margin=0.1"])


def test_a_number_of_shots_counts_once(run, images):
    results = experiments.evaluate(run, images, CPU, shots=(1, 2, 1))
    assert [walk["shots"] for walk in results["walks"]] == [1, 2]


def test_results_describe_the_run(evaluated, trained):
    _, results = evaluated
    assert results["data"] == "folder"
    assert results["protocol"] == {"base_classes": 6, "way": 2, "sessions": 2}
    assert results["images"] == {"base training": 36, "test": 36}
    shown = {"title": Alice.title, "table_order": Alice.table_order, "highlighted": True, "images_seen_note": ""}
    assert (results["method"], results["shown"]) == ("alice", shown)
    assert results["parameters"] == sum(value.numel() for value in build_backbone("resnet18", width=2).parameters())
    assert results["training"]["seconds"] == trained.about()["seconds"] >= 0
    assert results["walks"][0]["memory"] == {"images": 0, "floats": 16 * (6 * 3 + 4)}


def test_an_unfinished_run_cannot_be_evaluated(tmp_path, images):
    run = Run.create(tmp_path / "run", CONFIG, {})
    with pytest.raises(StoreError, match=r"training is not finished.*--resume"):
        experiments.evaluate(run, images, CPU)
    assert not (run.folder / "results.json").exists()


def test_weights_that_were_changed_are_not_used(run, images):
    content = bytearray(run.weights.read_bytes())
    content[-1] ^= 1
    run.weights.write_bytes(content)
    with pytest.raises(StoreError, match="checksum"):
        experiments.evaluate(run, images, CPU)


def test_weights_of_another_architecture_are_not_used(run, images):
    run.replace_config(override(run.config(), ["model.width=3"]))
    with pytest.raises(StoreError, match=r"weights\.safetensors is of another architecture"):
        experiments.evaluate(run, images, CPU)


def test_more_shots_than_images_are_refused_by_name(run, images):
    with pytest.raises(ProtocolError, match=r'folder: 4 classes .* \(first: "eel" has 6, needed are 7\)'):
        experiments.evaluate(run, images, CPU, shots=(7,))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems want Unicode names")
def test_class_folders_whose_names_are_no_unicode(tmp_path):
    names = tuple(os.fsdecode(name) for name in (b"caf\xe9", b"th\xe9", b"eau", b"vin"))
    root = write_images(tmp_path / "drinks", names=names)
    run = train(small_config("protocol.base_classes=2", "train.epochs=1"), tmp_path / "run", root)
    results = experiments.evaluate(run, root, CPU)
    check_against_predictions(run, results)


def test_joint_is_judged_at_the_beginning_and_the_end(tmp_path, images):
    """Each look is a training; the bench looks no more often."""
    run = train(small_config("method=joint", "train.epochs=1"), tmp_path / "run", images)
    results = experiments.evaluate(run, images, CPU, shots=(1,))
    assert [step["session"] for step in results["walks"][0]["sessions"]] == [0, 3]


@pytest.mark.parametrize("name", ["alice", "finetune", "cec", "joint"])
def test_images_seen_are_those_that_pass_the_network(name):
    """Counted where they pass with gradients; of joint's sessions the last, which is a training on everything."""
    passed = []

    def count(module, inputs):
        if isinstance(module, Backbone) and torch.is_grad_enabled():
            passed.append(len(inputs[0]))

    config, kind = small_config(f"method={name}", "mixing.repeats=0", "incremental.steps=1"), METHODS[name]
    dataset, protocol = tiny_dataset(), Protocol(6, 2, 3, shots=2)
    base = base_images(dataset, protocol)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        method = kind(config, train_base_network(kind.base_recipe(config), base, CPU), CPU)
        method.fit_base(base, (2,))
        if name == "joint":
            list(sessions.walk(method, dataset, protocol, judged=(3,)))
    finally:
        hook.remove()
    assert kind.images_seen(config, base, protocol) == sum(passed)


# Before training


def test_a_class_with_too_few_images_is_found_before_training(tmp_path):
    root = write_images(tmp_path / "animals")
    for place in range(1, 6):
        (root / "train" / "鹿" / f"train{place}.png").unlink()
    config = small_config()
    with pytest.raises(ProtocolError, match=r'folder: 1 classes .* \(first: "鹿" has 1, needed are 2\).*fewer shots'):
        train(config, tmp_path / "run", root)
    assert list((tmp_path / "run").iterdir()) == []
    train(small_config("protocol.shots=[1]", "train.epochs=0"), tmp_path / "run", root)


def test_a_class_without_test_images_is_found_before_training(tmp_path):
    root = write_images(tmp_path / "animals")
    shutil.rmtree(root / "test" / "lynx")
    with pytest.raises(DataError, match=r"no test image \(first: lynx\)"):
        train(small_config(), tmp_path / "run", root)
    assert list((tmp_path / "run").iterdir()) == []


def test_base_and_new_classes_need_enough_images():
    counts = [1, 0, 4, 4]
    dataset = Dataset(part(counts, 0), part([1] * 4, 100), NAMES[:4], "tiny")
    experiments.require_enough_images(dataset, Protocol(1, 1, 2, order=(0, 2, 3)), (4, 1))
    with pytest.raises(ProtocolError, match=r'\(first: "bee" has 0, needed are 1\)'):
        experiments.require_enough_images(dataset, Protocol(2, 1, 2), (4,))
    with pytest.raises(ProtocolError, match=r'2 classes .* \(first: "cat" has 4, needed are 5\)'):
        experiments.require_enough_images(dataset, Protocol(1, 1, 2, order=(0, 2, 3)), (1, 5))


def test_missing_weights_name_both_ways_on_and_leave_no_run(tmp_path, images):
    config = small_config("model.init=pretrained")
    with pytest.raises(ConfigError, match=r"--set model\.weights=.*--set model\.backbone=efficientnet_lite0"):
        train(config, tmp_path / "run", images)
    train(small_config("train.epochs=0"), tmp_path / "run", images)


def test_a_run_with_a_past_survives_missing_data(tmp_path, images):
    config = small_config()
    run = Run.create(tmp_path / "run", config, {})
    run.save("checkpoint", {"x": torch.ones(1)}, {"step": 1, "seconds": 1.0})
    with pytest.raises(DataError):
        experiments.train(config, run, tmp_path / "nowhere", CPU, lambda text: None)
    assert Run.open(run.folder).has("checkpoint")


def test_training_never_reads_a_test_image(tmp_path, monkeypatch):
    class Secret(ArrayPixels):
        def read(self, rows):
            raise AssertionError("a test image was read")

    dataset = tiny_dataset()
    secret = Images(Secret(dataset.test.pixels.array), dataset.test.labels, dataset.test.rows)
    closed = Dataset(dataset.train, secret, dataset.class_names, "folder")
    monkeypatch.setattr(experiments, "dataset_of", lambda config, root, quiet: closed)
    run = train(small_config("train.selection=validation", "train.validation_share=0.3"), tmp_path / "run", None)
    assert run.finished
    assert any("validation" in line for line in run.metrics())
    with pytest.raises(AssertionError, match="a test image was read"):
        experiments.evaluate(run, None, CPU)


# What training will do


def description(network_config, dataset, protocol):
    network = new_base_network(network_config, protocol.base_classes, CPU)
    base = base_images(dataset, protocol)
    return "\n".join(experiments.describe_training(network_config, network, base, dataset, protocol, CPU))


def test_the_description_says_what_will_be_done(monkeypatch):
    heads = 16 * 8 + 8 * 8 + 2 * 8 + (6 + 15) * 8
    monkeypatch.setattr(Trainer, "estimate", lambda *arguments: 75.0)
    lines = description(small_config("mixing.repeats=2"), tiny_dataset(), Protocol(6, 2, 3)).splitlines()
    assert lines[0] == "tiny: 6 base classes with 36 images, then 3 sessions of 2 classes"
    assert lines[1].endswith(f"parameters in the backbone, {heads} in the heads")
    assert lines[2] == "2 epochs of 4 steps: 8 images, 2 views, 2 mixtures each"
    assert lines[3].startswith("time on this machine (cpu, ")
    assert lines[3].endswith("about 1 min 15 s")
    assert len(lines) == 4


def test_days_on_a_cpu_come_with_advice(monkeypatch):
    monkeypatch.setattr(Trainer, "estimate", lambda *arguments: 5 * 86400.0)
    text = description(small_config(), tiny_dataset(), Protocol(6, 2, 3))
    assert "about 5.0 days" in text
    assert "--set model.width=16" in text
    assert "fscil demo" in text
    assert "cifar100_cpu" not in text  # which is for one data set
    text = description(small_config(), replace(tiny_dataset(), name="cifar100"), Protocol(6, 2, 3))
    assert "fscil train cifar100_cpu" in text


def test_what_will_be_done_is_said_before_its_time_is_measured(monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "estimate", stop)
    config, dataset, protocol = small_config(), tiny_dataset(), Protocol(6, 2, 3)
    network = new_base_network(config, protocol.base_classes, CPU)
    told = experiments.describe_training(config, network, base_images(dataset, protocol), dataset, protocol, CPU)
    assert "6 base classes" in next(told)
    with pytest.raises(KeyboardInterrupt):
        next(told)


def test_describing_changes_nothing():
    config, dataset, protocol = small_config(), tiny_dataset(), Protocol(6, 2, 3)
    network = new_base_network(config, protocol.base_classes, CPU)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert [*experiments.describe_training(config, network, base_images(dataset, protocol), dataset, protocol, CPU)]
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


# Protocols by name


def protocol_for(*assignments):
    return protocol_of(load_recipe("folder", assignments), tiny_dataset())


def test_classes_may_be_named_in_any_order():
    found = protocol_for('protocol.order=["lynx","鹿","dög","ant"]', "protocol.base_classes=2", "protocol.way=1")
    assert found == Protocol(2, 1, 2, 5, (11, 9, 3, 0))


def test_names_are_compared_as_people_read_them():
    apart = normalize("NFD", "dög")
    assert apart != "dög"
    assert protocol_for(f'protocol.order=["{apart}","ant"]', "protocol.way=1").order == (3, 0)


def test_sixty_percent_are_base_classes_by_default():
    assert protocol_for("protocol.way=2") == Protocol(7, 2, 2)


def test_an_unknown_class_is_named():
    with pytest.raises(ConfigError, match=r'protocol\.order: tiny has no class "cow"'):
        protocol_for('protocol.order=["ant","cow"]')


def test_a_class_in_two_sessions_is_named():
    with pytest.raises(ConfigError, match=r'protocol\.order names "dög" twice: sessions must not overlap'):
        protocol_for('protocol.order=["dög","ant","dög"]', "protocol.way=1")


# Departures


@pytest.mark.parametrize("name", ["cifar100", "mini_imagenet", "cub200"])
def test_the_papers_recipe_does_not_depart_from_itself(name):
    harmless = ["train.seed=4", "protocol.shots=[1]", "train.checkpoint_minutes=1"]
    assert departures_from_paper(load_recipe(name, harmless)) == {}


def test_departures_are_listed_with_both_values():
    config = load_recipe("cifar100", ["model.width=16", "train.epochs=10", "views.scale=[0.5,1.0]"])
    assert departures_from_paper(config) == {
        "model.width": [16, 64],
        "train.epochs": [10, 100],
        "views.scale": [[0.5, 1.0], [0.2, 1.0]],
    }


@pytest.mark.parametrize(
    ("method", "listed"),
    [("cec", ["episodes"]), ("icarl", ["batch", "steps"]), ("orco", ["batch", "steps"]), ("ncm", [])],
)
def test_settings_of_sessions_are_listed_where_they_have_an_effect(method, listed):
    """Those of episodes for CEC, which has none of the others."""
    changed = ["incremental.steps=7", "incremental.batch=16", "incremental.episodes=1000"]
    found = departures_from_paper(load_recipe("cifar100", [f"method={method}", *changed]))
    assert sorted(key.removeprefix("incremental.") for key in found if key.startswith("incremental.")) == listed


def test_initial_weights_depart_only_where_the_paper_has_none():
    weights = "model.weights=resnet18.pth"
    assert departures_from_paper(load_recipe("cub200", [weights])) == {}
    assert departures_from_paper(load_recipe("cifar100", [weights])) == {"model.weights": ["resnet18.pth", ""]}


def test_own_data_has_nothing_to_depart_from():
    assert departures_from_paper(small_config()) == {}
    assert departures_from_paper(load_recipe("glyphs", ["train.epochs=1"])) == {}


def test_images_smaller_than_the_view_are_enlarged(tmp_path):
    """A folder of thumbnails under a recipe for larger ones."""
    root = write_images(tmp_path / "animals", train=3, test=1, names=NAMES[:4])
    config = small_config("protocol.base_classes=2", "train.epochs=1", f"views.size={2 * SIZE}")
    run = train(config, tmp_path / "run", root)
    assert len(experiments.evaluate(run, root, CPU)["walks"][0]["sessions"]) == 2


def test_classes_that_come_later_change_no_earlier_run(tmp_path):
    root = write_images(tmp_path / "photos", names=tuple("bcdefg"))
    run = train(
        small_config("protocol.base_classes=none", "protocol.order=[]", "train.epochs=1"), tmp_path / "run", root
    )
    assert run.config().protocol.order == tuple("bcdefg")
    before = experiments.evaluate(run, root, CPU)
    write_images(root, names=("a",))
    after = experiments.evaluate(run, root, CPU)
    assert after["walks"] == before["walks"]
    assert after["protocol"] == before["protocol"]


def test_confusion_is_summed_over_draws_and_leaves_nothing_stale(run, images):
    experiments.evaluate(run, images, CPU, shots=(2, 1))
    one = np.loadtxt(run.folder / "confusion-1-shot.csv", delimiter=",", skiprows=1, usecols=range(1, 11))
    experiments.evaluate(run, images, CPU, shots=(1,), draws=3)
    three = np.loadtxt(run.folder / "confusion-1-shot.csv", delimiter=",", skiprows=1, usecols=range(1, 11))
    assert three.sum() == 3 * one.sum()
    assert sorted(path.name for path in run.folder.glob("confusion-*")) == ["confusion-1-shot.csv"]
