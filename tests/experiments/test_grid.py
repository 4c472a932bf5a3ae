"""A grid of experiments: what is shared, what is skipped, what goes on after a stop or past a failure."""

import json
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fscil import data
from fscil.config import load_recipe
from fscil.data.word_vectors import class_vectors
from fscil.errors import ConfigError, StoreError
from fscil.experiments.base_networks import base_key
from fscil.experiments.cells import Cell
from fscil.experiments.grid import Grid
from fscil.experiments.provenance import read_results
from fscil.experiments.run import evaluate
from fscil.experiments.studies import ablation, comparison, default_methods, margin_and_scale
from fscil.methods import METHODS, Alice
from fscil.runtime import progress
from fscil.runtime.files import load_tensors
from fscil.training.base_training import plain_recipe
from fscil.training.context import Context
from fscil.training.run_folder import Run
from helpers import NAMES, call, sets, small_config, write_images

CPU = Context.on("cpu", quiet=True)
QUICK = ("train.epochs=1", "incremental.steps=1", "protocol.draw=0")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("photos"))


def grid(out, photos, cells, said=None):
    return Grid(out, cells, photos, CPU, (said if said is not None else []).append)


@pytest.fixture
def register():
    """METHODS.register, undone after the test."""
    names = []

    def add(name, method):
        METHODS.register(name)(method)
        names.append(name)

    yield add
    for name in names:
        METHODS.unregister(name)


def results(out, name):
    return read_results(out / "cells" / name)


def write_vectors(path, seed):
    random = np.random.default_rng(seed)
    lines = [" ".join([name, *(f"{value:.4f}" for value in random.normal(size=8))]) for name in NAMES]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def trained(out):
    return sorted(path.name for path in (out / "base").iterdir())


def test_a_cell_gives_what_train_and_evaluate_give(tmp_path, photos):
    """The grid is a shortcut for them."""
    config = small_config(*QUICK)
    assert grid(tmp_path / "out", photos, [Cell("alice", config)]).run("bench", (2, 1), [0, 1]) == {}
    assert call("train", "folder", "--data", photos, "--out", tmp_path / "run", "--quiet", *sets(*QUICK)) == 0
    expected = evaluate(Run.open(tmp_path / "run"), photos, CPU, (2, 1), draws=2)
    found = results(tmp_path / "out", "alice-seed0")
    kept = ("shots", "draw", "sessions", "pd", "memory")
    walks, same = ([{key: walk[key] for key in kept} for walk in one["walks"]] for one in (found, expected))
    assert walks == same


def test_methods_with_the_same_base_network_share_it(tmp_path, photos):
    config = small_config(*QUICK)
    cells = comparison(config, ["alice", "finetune", "icarl"], [0])
    assert grid(tmp_path, photos, cells).run("bench", (2,), [0]) == {}
    assert len(trained(tmp_path)) == 2
    assert results(tmp_path, "finetune-seed0")["base"] == results(tmp_path, "icarl-seed0")["base"]
    assert results(tmp_path, "alice-seed0")["base"] != results(tmp_path, "icarl-seed0")["base"]


def test_the_key_of_a_base_network_sees_what_decides_it():
    config = small_config()
    same = [
        replace(config, method="cec"),
        replace(config, protocol=replace(config.protocol, shots=(3,), draw=7)),
        replace(config, test=replace(config.test, prototypes="all")),
        replace(config, incremental=replace(config.incremental, steps=1)),
        replace(config, data=replace(config.data, word_vectors="words.txt")),
    ]
    other = [
        replace(config, train=replace(config.train, seed=1)),
        replace(config, loss=replace(config.loss, margin=0.1)),
        replace(config, protocol=replace(config.protocol, base_classes=5)),
        replace(config, loss=replace(config.loss, scale=10.0)),
        replace(config, data=replace(config.data, test_share=0.3)),  # some of its training images are for testing here
        plain_recipe(config),
    ]
    assert {base_key(one) for one in same} == {base_key(config)}
    assert len({base_key(one) for one in [config, *other]}) == 7


def test_results_tell_the_epochs_of_the_network_and_the_images_it_saw(tmp_path, photos):
    cells = comparison(small_config(*QUICK), ["alice", "ncm", "ncm_equal_images"], [0])  # two views with a mixture each
    assert grid(tmp_path, photos, cells).run("bench", (2,), [0]) == {}
    alice, plain, equal = (results(tmp_path, cell.name)["training"] for cell in cells)
    assert [one["epochs"] for one in (alice, plain, equal)] == [1, 1, 4]
    assert alice["images_seen"] == equal["images_seen"] == 4 * plain["images_seen"]


@pytest.mark.parametrize("change", ["test.resize=20", "test.interpolation=bicubic"])
def test_the_key_sees_the_scale_of_test_images_where_training_does(change):
    """Padded crops are at that scale, SAVC's too; and validation images are test images."""
    for method in ("ncm", "savc"):
        one, other = (METHODS[method].base_recipe(small_config("mixing.repeats=0", *more)) for more in ([], [change]))
        assert base_key(one) != base_key(other)
    assert base_key(small_config(change)) == base_key(small_config())
    validated = "train.selection=validation"
    assert base_key(small_config(validated, change)) != base_key(small_config(validated))
    assert base_key(plain_recipe(small_config("test.crops=2"))) == base_key(plain_recipe(small_config()))


def test_networks_of_padded_crops_at_different_scales_are_not_shared(tmp_path, photos):
    for name, scale in (("ncm", ()), ("teen", ("test.resize=20",))):
        cells = comparison(small_config(*QUICK, *scale), [name], [0])
        assert grid(tmp_path, photos, cells).run("bench", (2,), [0]) == {}
    assert len(trained(tmp_path)) == 2


def test_the_keys_of_networks_trained_before_stay():
    """Folders of earlier versions hold networks under these names."""
    config = load_recipe("cifar100", ["model.initialisation=kaiming"])  # the only one there was
    plain = plain_recipe(config)
    before = replace(plain, views=replace(config.views, count=1))  # as it was without padded crops
    assert (base_key(config), base_key(before)) == ("ec854aafe4db", "66f9829c1c27")
    assert base_key(plain) != base_key(before)
    assert base_key(plain) == "b67a98a1c2ca"  # at the scale of the recipe for this data
    no_relu = replace(plain, model=replace(plain.model, last_relu=False))
    assert base_key(no_relu) != base_key(plain)
    assert base_key(load_recipe("cifar100_cpu")) == "6898b3d92fbe"
    of_glyphs = ["views.count=2", "views.jitter=0.8", "views.grayscale=0.2", "model.backbone=resnet18"]
    of_glyphs += ["train.epochs=8", "train.batch=64", "train.lr=0.1"]  # the recipe's settings in earlier versions
    assert base_key(load_recipe("glyphs", of_glyphs)) == "b6130f360105"
    for other in ("model.initialisation=torch", "train.precision=bf16"):
        assert base_key(load_recipe("glyphs", [other])) != base_key(load_recipe("glyphs"))


def test_what_is_done_is_not_done_again(tmp_path, photos):
    config, said = small_config(*QUICK), []
    cells = [Cell("alice", config)]
    grid(tmp_path, photos, cells).run("bench", (2,), [0])
    before = results(tmp_path, "alice-seed0")
    grid(tmp_path, photos, cells, said).run("bench", (2,), [0])
    assert said == ["alice-seed0: done before"]
    grid(tmp_path, photos, cells).run("bench", (2,), [0, 1])
    after = results(tmp_path, "alice-seed0")
    assert after["walks"][0] == before["walks"][0]
    assert [walk["draw"] for walk in after["walks"]] == [0, 1]


def test_a_grid_goes_on_where_it_was_stopped(tmp_path, photos, monkeypatch):
    """Ctrl-C between two sessions: finished walks are kept, and the result is that of a grid that was not stopped."""
    config = small_config(*QUICK)
    cells = comparison(config, ["alice", "finetune"], [0])
    grid(tmp_path / "whole", photos, cells).run("bench", (2,), [0, 1])
    learn, calls = Alice.learn, []

    def interrupted(self, new):
        calls.append(1)
        if len(calls) == 5:  # in the second of two walks of three sessions
            raise KeyboardInterrupt
        learn(self, new)

    monkeypatch.setattr(Alice, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        grid(tmp_path / "parts", photos, cells).run("bench", (2,), [0, 1])
    assert [walk["draw"] for walk in results(tmp_path / "parts", "alice-seed0")["walks"]] == [0]
    grid(tmp_path / "parts", photos, cells).run("bench", (2,), [0, 1])
    for name in ("alice-seed0", "finetune-seed0"):
        whole, parts = (results(tmp_path / place, name)["walks"] for place in ("whole", "parts"))
        assert [walk["sessions"] for walk in whole] == [walk["sessions"] for walk in parts]


class Broken(Alice):
    """A method with a mistake in it."""

    def learn(self, new):
        raise ZeroDivisionError("a mistake")


def test_a_failing_method_does_not_stop_the_others(tmp_path, photos, monkeypatch, capsys, register):
    register("broken", Broken)
    options = ["--data", photos, "--methods", "broken,alice", "--shots", "2", "--out", tmp_path, "--quiet"]
    assert call("bench", "folder", *options, *sets(*QUICK)) == 1
    told = capsys.readouterr()
    assert "broken-seed0 failed: ZeroDivisionError: a mistake" in told.out
    assert "1 of 2 cells failed: broken-seed0. The reasons are above" in told.err
    assert f"fscil report {tmp_path}" in told.out
    assert "ZeroDivisionError" in (tmp_path / "cells/broken-seed0/failed.txt").read_text()
    assert len(results(tmp_path, "alice-seed0")["walks"]) == 1
    assert call("report", tmp_path) == 0
    assert "failed: broken-seed0" in capsys.readouterr().out
    monkeypatch.setattr(Broken, "learn", Alice.learn)
    assert call("bench", "folder", *options, *sets(*QUICK)) == 0
    assert not (tmp_path / "cells/broken-seed0/failed.txt").exists()


def test_other_settings_in_the_same_folder_are_refused(tmp_path, photos):
    grid(tmp_path, photos, [Cell("alice", small_config(*QUICK))]).run("bench", (2,), [0])
    problems = grid(tmp_path, photos, [Cell("alice", small_config(*QUICK, "loss.margin=0.1"))]).run("bench", (2,), [0])
    assert "loss.margin = 0.4 there, 0.1 here" in problems["alice-seed0"]
    assert not (tmp_path / "cells/alice-seed0/failed.txt").exists(), "nothing is wrong with what is there"


def test_settings_that_led_to_nothing_can_be_corrected(tmp_path, photos):
    wrong = small_config(*QUICK, "model.init=pretrained")  # there are no such weights
    assert "ImageNet weights" in grid(tmp_path, photos, [Cell("alice", wrong)]).run("bench", (2,), [0])["alice-seed0"]
    assert grid(tmp_path, photos, [Cell("alice", small_config(*QUICK))]).run("bench", (2,), [0]) == {}
    assert load_recipe(tmp_path / "cells/alice-seed0/config.toml") == small_config(*QUICK)


def test_other_photos_in_the_same_folder_are_refused(tmp_path, photos):
    """Neither for results that are there nor for a new method, which would start from the first photos' network."""
    cells = comparison(small_config(*QUICK), ["alice"], [0])
    grid(tmp_path / "out", photos, cells).run("bench", (2,), [0])
    described = (tmp_path / "out/grid.json").read_text()
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "train" / "鹿" / "train0.png").unlink()
    others = write_images(tmp_path / "others", names=tuple("abcdefghijkl"))
    for root, told in ((fewer, '"鹿" has 6 training and 3 test images there, 5 and 3 here'), (others, '"ant" has 6')):
        for methods_ in (["alice"], ["finetune"]):
            with pytest.raises(ConfigError, match=f"results of other images: {told}"):
                grid(tmp_path / "out", root, comparison(small_config(*QUICK), methods_, [0])).run("bench", (2,), [0])
    with pytest.raises(ConfigError, match="folder there, glyphs here"):
        grid(tmp_path / "out", None, comparison(load_recipe("glyphs"), ["cec"], [0])).run("bench", (2,), [0])
    assert (tmp_path / "out/grid.json").read_text() == described
    said = []
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert grid(tmp_path / "out", moved, cells, said).run("bench", (2,), [0]) == {}
    assert said == ["alice-seed0: done before"]


def test_photos_that_led_to_nothing_can_be_corrected(tmp_path, photos):
    few = write_images(tmp_path / "few", train=1)
    cells = [Cell("alice", small_config(*QUICK))]
    assert "too few" in grid(tmp_path / "out", few, cells).run("bench", (2,), [0])["alice-seed0"]
    assert grid(tmp_path / "out", photos, cells).run("bench", (2,), [0]) == {}


def test_what_fails_every_cell_is_one_error_and_leaves_no_folder(tmp_path, photos, capsys):
    options = ["--methods", "alice,finetune,icarl", "--seeds", "2", "--out", tmp_path / "out", "--quiet", *sets(*QUICK)]
    missing = ["--data", tmp_path / "nowhere", "--shots", "2"]
    for wrong, told in ((missing, "nowhere"), (["--data", photos, "--shots", "600"], "needed are 600")):
        for dry in ([], ["--dry-run"]):
            assert call("bench", "folder", *wrong, *options, *dry) == 1
            text = capsys.readouterr()
            assert told in text.err
            assert text.err.count("\n") == 1
            assert "failed" not in text.out + text.err
    assert not (tmp_path / "out").exists()


def test_no_method_is_not_all_methods(tmp_path, capsys):
    for methods_ in ("", "alice,,ncm"):
        assert call("bench", "glyphs", "--methods", methods_, "--out", tmp_path / "out") == 2
        assert 'no method named ""' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_word_vectors_in_the_same_folder_are_refused(tmp_path, photos):
    """It is what they say that counts, not where they lie."""

    def run(vectors, draws):
        config = small_config(*QUICK, f"data.word_vectors={vectors}")
        return grid(tmp_path / "out", photos, comparison(config, ["semantic_kd", "alice"], [0])).run(
            "bench", (2,), draws
        )

    first, second = (write_vectors(tmp_path / f"{seed}.txt", seed) for seed in (0, 1))
    assert run(first, [0]) == {}
    for draws in ([0], [0, 1]):
        assert list(run(second, draws)) == ["semantic-kd-seed0"]
    assert "other word vectors than" in run(second, [0])["semantic-kd-seed0"]
    assert run(first.rename(tmp_path / "moved.txt"), [0, 1]) == {}
    assert len(results(tmp_path / "out", "semantic-kd-seed0")["walks"]) == 2


def test_another_kind_in_the_same_folder_is_refused(tmp_path, photos):
    cells = [Cell("m=0 s=30", small_config(*QUICK))]
    grid(tmp_path, photos, cells).run("margin-scale", (2,), [0])
    with pytest.raises(ConfigError, match="holds the cells of margin-scale, not of bench"):
        grid(tmp_path, photos, comparison(small_config(*QUICK), ["alice"], [0])).run("bench", (2,), [0])
    assert json.loads((tmp_path / "grid.json").read_text())["kind"] == "margin-scale"


def test_folders_of_earlier_versions_are_gone_on_with(tmp_path, photos):
    """What they did not write down is not asked for."""
    vectors = write_vectors(tmp_path / "words.txt", 0)
    cells = comparison(small_config(*QUICK, f"data.word_vectors={vectors}"), ["semantic_kd"], [0])
    grid(tmp_path / "out", photos, cells).run("bench", (2,), [0])
    cell = tmp_path / "out/cells/semantic-kd-seed0"
    (cell / "word_vectors.sha256").unlink()
    old = results(tmp_path / "out", "semantic-kd-seed0")
    del old["walks"][0]["command"], old["data_fingerprint"]
    (cell / "provenance.json").unlink()
    (cell / "results.json").write_text(json.dumps(old))
    described = json.loads((tmp_path / "out/grid.json").read_text())
    del described["data"]
    (tmp_path / "out/grid.json").write_text(json.dumps(described))
    assert grid(tmp_path / "out", photos, cells).run("bench", (2,), [0, 1]) == {}
    assert results(tmp_path / "out", "semantic-kd-seed0")["walks"][0] == old["walks"][0]


def test_every_walk_knows_its_command(tmp_path, photos):
    out = tmp_path / "my grid"
    start = ["bench", "folder", "--data", photos, "--methods", "alice,alice", "--shots", "2", "--out", out, "--quiet"]
    commands = [[*start, *sets(*QUICK, *more)] for more in (["about=one; two"], ["about=three"])]
    commands[1] += ["--draws", "2"]
    for command in commands:
        assert call(*command) == 0
    assert [cell["name"] for cell in json.loads((out / "grid.json").read_text())["cells"]] == ["alice-seed0"]
    found = results(out, "alice-seed0")
    spelt = [["fscil", *map(str, command)] for command in commands]
    assert [shlex.split(walk["command"]) for walk in found["walks"]] == spelt
    assert shlex.split(found["command"]) == spelt[0]


def test_seeds_begin_with_the_recipes(tmp_path, photos):
    options = ["--data", photos, "--methods", "alice", "--shots", "2", "--seeds", "2", "--out", tmp_path, "--quiet"]
    assert call("bench", "folder", *options, *sets(*QUICK, "train.seed=5")) == 0
    assert sorted(path.name for path in (tmp_path / "cells").iterdir()) == ["alice-seed5", "alice-seed6"]


def test_progress_tells_the_walk(tmp_path, photos, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    cells = comparison(small_config(*QUICK), ["alice", "finetune"], [0])
    Grid(tmp_path, cells, photos, Context.on("cpu"), [].append).run("bench", (2, 1), [0, 1])
    lines = capsys.readouterr().err.splitlines()
    told = [line.partition(": Ft-CNN: ")[0] for line in lines if ": Ft-CNN: 1/1" in line]
    walks = ["2-shot draw 0 (1/4)", "2-shot draw 1 (2/4)", "1-shot draw 0 (3/4)", "1-shot draw 1 (4/4)"]
    assert told == [f"[2/2] finetune, seed 0, {walk}" for walk in walks for _ in range(3)]


def test_no_sessions_but_the_base(tmp_path, photos):
    said = []
    cells = [Cell("alice", small_config(*QUICK, "protocol.sessions=0"))]
    assert grid(tmp_path, photos, cells, said).run("bench", (2,), [0]) == {}
    assert said[-1].startswith("alice-seed0: average accuracy ")


def test_the_seconds_of_fitting_outlast_a_stop(tmp_path, photos, monkeypatch):
    """Loading what was fitted before the stop takes no time worth telling."""
    cells, learn = [Cell("alice", small_config(*QUICK))], Alice.learn

    def stop(self, new):
        raise KeyboardInterrupt

    monkeypatch.setattr(Alice, "learn", stop)
    with pytest.raises(KeyboardInterrupt):
        grid(tmp_path, photos, cells).run("bench", (2,), [0])
    path = tmp_path / "cells/alice-seed0/provenance.json"
    about = json.loads(path.read_text())
    assert about["fit_seconds"] >= 0
    path.write_text(json.dumps({**about, "fit_seconds": 1234.5}))
    monkeypatch.setattr(Alice, "learn", learn)
    assert grid(tmp_path, photos, cells).run("bench", (2,), [0]) == {}
    assert results(tmp_path, "alice-seed0")["fit_seconds"] == 1234.5


def test_predictions_are_kept_with_the_figures(tmp_path, photos):
    grid(tmp_path, photos, [Cell("alice", small_config(*QUICK))]).run("bench", (2,), [0])
    tensors, about = load_tensors(tmp_path / "cells/alice-seed0/predictions/2-shot-draw-0.safetensors")
    assert about["shots"] == 2
    steps = results(tmp_path, "alice-seed0")["walks"][0]["sessions"]
    for step in steps:
        predicted, target = (tensors[f"{part}.session-{step['session']}"].numpy() for part in ("predicted", "target"))
        assert np.mean(predicted == target) == pytest.approx(step["average"])


def test_joint_is_judged_at_the_beginning_and_the_end(tmp_path, photos):
    cells = comparison(small_config(*QUICK), ["joint"], [0])
    assert grid(tmp_path, photos, cells).run("bench", (2,), [0]) == {}
    steps = results(tmp_path, "joint-seed0")["walks"][0]["sessions"]
    assert [step["session"] for step in steps] == [0, 3]


# The studies


def test_the_ablation_has_the_papers_seven_rows_from_five_trainings():
    cells = ablation(load_recipe("cifar100"), [0])
    found = []
    for cell in cells:
        config = cell.config
        found.append(
            (
                config.loss.kind,
                config.mixing.repeats > 0,
                config.views.count == 2,
                config.model.projection > 0,
                config.test.prototypes == "balanced",
            )
        )
    assert found == [
        ("softmax", False, False, False, False),
        ("softmax", False, False, False, True),
        ("cosface", False, False, False, False),
        ("cosface", False, False, False, True),
        ("cosface", False, False, True, True),
        ("cosface", False, True, True, True),
        ("cosface", True, True, True, True),
    ]
    assert len({base_key(cell.config) for cell in cells}) == 5
    assert cells[-1].config == load_recipe("cifar100")
    assert cells[0].config.loss.margin == 0


def test_the_margin_and_scale_study_is_two_sweeps():
    cells = margin_and_scale(load_recipe("cifar100"), [0])
    pairs = [(cell.config.loss.margin, cell.config.loss.scale) for cell in cells]
    assert {margin for margin, scale in pairs if scale == 30} == {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6}
    assert {scale for margin, scale in pairs if margin == 0.4} == {10, 20, 30, 40, 50, 60}
    assert len(pairs) == len(set(pairs)) == 12
    assert {(cell.config.views.count, cell.config.mixing.repeats) for cell in cells} == {(2, 0)}


def batches(recipe, *assignments):
    config = load_recipe(recipe, assignments)
    return [[cell.config.train.batch for cell in study(config, [0])] for study in (ablation, margin_and_scale)]


def test_without_class_augmentation_the_papers_batch_is_512():
    assert batches("cifar100") == [[512] * 6 + [128], [512] * 12]
    assert batches("mini_imagenet", "train.seed=3", "train.checkpoint_minutes=1") == [[512] * 6 + [64], [512] * 12]


def test_training_settings_of_ones_own_have_one_batch():
    assert batches("cifar100", "train.epochs=10") == [[128] * 7, [128] * 12]
    assert batches("cifar100", "train.batch=64") == [[64] * 7, [64] * 12]
    own = load_recipe("glyphs").train.batch
    assert batches("glyphs") == [[own] * 7, [own] * 12]


def test_a_comparison_is_equal_but_for_method_and_seed():
    config = load_recipe("glyphs")
    cells = comparison(config, ["alice", "cec"], [0, 1])
    assert [(cell.config.method, cell.config.train.seed) for cell in cells] == [
        ("alice", 0),
        ("alice", 1),
        ("cec", 0),
        ("cec", 1),
    ]
    assert all(
        replace(cell.config, method=config.method, train=replace(cell.config.train, seed=config.train.seed)) == config
        for cell in cells
    )


def test_methods_that_need_word_vectors_wait_for_them():
    plain, with_words = load_recipe("cifar100"), load_recipe("cifar100", ["data.word_vectors=some.txt"])
    assert {*default_methods(with_words)} - {*default_methods(plain)} == {"semantic_kd", "synthesized"}
    assert "joint" not in default_methods(with_words)


def test_a_new_method_says_itself_whether_it_runs_by_default(register):
    costly, wordy = type("Costly", (Alice,), {"judged": "last"}), type("Wordy", (Alice,), {"needs_words": True})
    for name, method in {"costly": costly, "wordy": wordy, "plain": Broken}.items():
        register(name, method)
    plain, with_words = load_recipe("cifar100"), load_recipe("cifar100", ["data.word_vectors=some.txt"])
    assert {"costly", "wordy", "plain"} & {*default_methods(plain)} == {"plain"}
    assert {"costly", "wordy", "plain"} & {*default_methods(with_words)} == {"wordy", "plain"}


def test_the_embedded_data_set_has_vectors_for_its_names():
    config = load_recipe("glyphs")
    names = data.load("glyphs", None).class_names
    vectors = class_vectors("semantic_kd", config.data.word_vectors, names)
    assert vectors.shape == (100, 16)
    assert len({tuple(vector) for vector in vectors.tolist()}) == 100
    assert {"semantic_kd", "synthesized"} <= {*default_methods(config)}


def test_unknown_names_are_told(capsys):
    with pytest.raises(
        ConfigError, match=r'no method named "alise"\. Did you mean "alice"\? Installed: alice, finetune'
    ):
        comparison(load_recipe("glyphs"), ["alise"], [0])
    assert call("study", "ablations", "glyphs") == 2
    assert "Known are paper, ablation, margin-scale, readout" in capsys.readouterr().err


def test_a_folder_without_a_grid_cannot_be_reported(tmp_path):
    from fscil.report import write_report

    with pytest.raises(StoreError, match=r"has no grid\.json"):
        write_report(tmp_path)
