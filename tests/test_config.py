import doctest
import re
import tomllib
from dataclasses import replace
from importlib import import_module, resources

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fscil.config import (
    Config,
    DataConfig,
    LossConfig,
    MixingConfig,
    ModelConfig,
    ProtocolConfig,
    TrainConfig,
    ViewsConfig,
    difference,
    flatten,
    from_mapping,
    load_recipe,
    override,
    recipe_names,
    to_toml,
)
from fscil.errors import ConfigError

# Recipes

# What the paper and its authors' program say: data set -> settings that differ.
PAPER = {
    "cifar100": {
        "data.resize": None,
        "data.statistics": "cifar10",
        "protocol.base_classes": 60,
        "protocol.way": 5,
        "protocol.sessions": 8,
        "views.size": 32,
        "model.stem": "cifar",
        "model.init": "scratch",
        "train.epochs": 100,
        "train.lr": 0.01,
        "train.batch": 128,
        "mixing.repeats": 4,
        "test.resize": 36,
        "test.interpolation": "bicubic",
    },
    "mini_imagenet": {
        "data.resize": [92, 92],
        "data.statistics": "cifar10",
        "protocol.base_classes": 60,
        "protocol.way": 5,
        "protocol.sessions": 8,
        "views.size": 84,
        "model.stem": "cifar",
        "model.init": "scratch",
        "train.epochs": 200,
        "train.lr": 0.01,
        "train.batch": 64,
        "mixing.repeats": 4,
        "test.resize": None,
    },
    "cub200": {
        "data.resize": 256,
        "data.statistics": "auto",
        "protocol.base_classes": 100,
        "protocol.way": 10,
        "protocol.sessions": 10,
        "views.size": 224,
        "model.stem": "imagenet",
        "model.init": "pretrained",
        "train.epochs": 100,
        "train.lr": 0.001,
        "train.batch": 512,
        "mixing.repeats": 0,
        "test.resize": None,
    },
}
# And what they have in common.
COMMON = {
    "data.interpolation": "bilinear",
    "protocol.shots": [5, 1],
    "protocol.draw": "published",
    "protocol.order": [],
    "views.count": 2,
    "views.scale": [0.2, 1.0],
    "views.ratio": [3 / 4, 4 / 3],
    "views.flip": 0.5,
    "views.jitter": 0.8,
    "views.brightness": 0.4,
    "views.contrast": 0.4,
    "views.saturation": 0.4,
    "views.hue": 0.1,
    "views.grayscale": 0.2,
    "mixing.lam": "uniform",
    "model.backbone": "resnet18",
    "model.width": 64,
    "model.weights": "",
    "model.projection": 2048,
    "model.head": "cosine",
    "loss.kind": "cosface",
    "loss.scale": 30.0,
    "loss.margin": 0.4,
    "train.schedule": "step",
    "train.drops": [60, 70],
    "train.gamma": 0.1,
    "train.momentum": 0.9,
    "train.nesterov": True,
    "train.weight_decay": 5e-4,
    "train.selection": "last",
    "train.precision": "fp32",
    "test.prototypes": "balanced",
}


@pytest.mark.parametrize("name", sorted(PAPER))
def test_recipes_are_the_papers(name):
    found = flatten(load_recipe(name))
    assert found["data.name"] == name
    for key, value in (COMMON | PAPER[name]).items():
        assert (key, found[key]) == (key, value)


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_leave_rate_and_steps_of_sessions_to_each_method(name):
    """They are chosen for each method: one value for all would override the choice."""
    found = load_recipe(name).incremental
    assert (found.lr, found.steps, found.trainable, found.episodes) == (None, None, "auto", None)


def test_recipes_from_scratch_are_initialised_as_the_released_program_is():
    for name in ("cifar100", "mini_imagenet"):
        assert load_recipe(name).model.initialisation == "torch"
    for name in ("glyphs", "cifar100_cpu"):  # networks were trained with it before there was a choice
        assert load_recipe(name).model.initialisation == "kaiming"


def test_every_recipe_loads_and_says_what_it_is():
    assert {"cifar100", "cifar100_cpu", "mini_imagenet", "cub200", "glyphs", "folder"} <= set(recipe_names())
    for name in recipe_names():
        assert load_recipe(name).about
    assert load_recipe("glyphs").views.flip == 0  # a mirrored character may be another one


def test_the_hour_on_a_cpu_is_judged_as_the_paper_judges():
    """Only training may differ: same images, same classes in the same sessions, same test images and prototypes."""
    short, paper = load_recipe("cifar100_cpu"), load_recipe("cifar100")
    assert (short.data, short.protocol, short.test) == (paper.data, paper.protocol, paper.test)
    assert short.views.size == paper.views.size
    assert (short.method, short.loss.kind, short.train.selection) == ("alice", "cosface", "last")
    assert short.model.projection > 0


def test_a_recipe_that_does_not_exist():
    with pytest.raises(ConfigError, match=r'no recipe or file named cifar10\..*"cifar100".*glyphs'):
        load_recipe("cifar10")


def test_a_recipe_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('about = "mine"\n[train]\nepochs = 3\nlr = 1\n[data]\nresize = [40, 50]\n')
    found = load_recipe(path)
    expected = replace(Config(), about="mine", train=replace(TrainConfig(), epochs=3, lr=1.0))
    assert found == replace(expected, data=DataConfig(resize=(40, 50)))
    assert load_recipe(str(path), ["train.epochs=4"]).train.epochs == 4


@pytest.mark.parametrize("content", [b"[train\nepochs = 3", b"about = '\xff'"])
def test_a_file_that_is_not_toml(tmp_path, content):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
        load_recipe(path)


# Keys


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("train.epoch", "train.epochs"),
        ("trian.lr", "train.lr"),
        ("protocols.shots", "protocol.shots"),
        ("lr", "train.lr"),
        ("way", "protocol.way"),
        ("loss.margn", "loss.margin"),
        ("model.backbon", "model.backbone"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(key, suggestion):
    with pytest.raises(ConfigError, match=re.escape(f'unknown key {key}. Did you mean "{suggestion}"?')):
        override(Config(), [f"{key}=1"])


@pytest.mark.parametrize("word", sorted({key.split(".")[1] for key in flatten(Config()) if "." in key}))
def test_the_last_word_of_a_key_is_enough_for_a_suggestion(word):
    with pytest.raises(ConfigError, match=rf'Did you mean "\w+\.{word}"\?'):
        override(Config(), [f"{word}=1"])


def test_a_key_like_no_other_gets_the_whole_list():
    with pytest.raises(
        ConfigError, match=r"unknown key zzzzzzzz\. Known keys: about, method, data\.name.*test\.prototypes"
    ):
        override(Config(), ["zzzzzzzz=1"])


def test_unknown_keys_in_a_recipe_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nepoch = 3\n")
    with pytest.raises(ConfigError, match=r'mine\.toml: unknown key train\.epoch\. Did you mean "train\.epochs"\?'):
        load_recipe(path)


# Values


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.epochs=3.5", "train.epochs = 3.5: expected a whole number"),
        ("train.epochs=true", "expected a whole number"),
        ("train.epochs=many", "'many': expected a whole number"),
        ("train.lr=fast", "expected a number"),
        ("train.lr=true", "expected a number"),
        ("train.lr=nan", "expected a number"),
        ("train.lr=inf", "expected a number"),
        ("train.nesterov=1", "expected true or false"),
        ("train.schedule=cosine", 'expected "step" or "onecycle"'),
        ("model.weights=5", "expected text"),
        ("views.scale=[0.1]", "expected a list"),
        ("views.scale=0.1", "expected a list"),
        ("views.scale=[0.1, true]", "expected a number"),
        ("protocol.shots=5", "expected a list"),
        ("protocol.shots=[5, 1.5]", "expected a whole number"),
        ("data.resize=large", "expected a whole number or a list or none"),
        ("data.resize=[1,2,3]", "expected a whole number or a list or none"),
        ("protocol.draw=best", 'expected "published" or a whole number'),
        ("train=5", "train is a section"),
        ("train.lr.x=5", "expected a number"),
    ],
)
def test_wrong_types(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(Config(), [assignment])


@pytest.mark.parametrize(
    "assignment",
    [
        "protocol.way=0",
        "protocol.base_classes=0",
        "protocol.sessions=-1",
        "protocol.shots=[5, 0]",
        "protocol.shots=[]",
        "protocol.draw=-1",
        "views.count=0",
        "views.size=0",
        "views.scale=[0.5, 0.2]",
        "views.scale=[0.0, 0.2]",
        "views.scale=[0.5, 1.2]",
        "views.ratio=[0.0, 1.0]",
        "views.ratio=[2.0, 1.0]",
        "views.flip=1.1",
        "views.jitter=-0.1",
        "views.grayscale=2",
        "views.brightness=-0.1",
        "views.hue=0.6",
        "mixing.repeats=-1",
        "model.width=0",
        "model.projection=-1",
        "loss.scale=-1",
        "train.epochs=-1",
        "train.batch=1",
        "train.lr=-0.1",
        "train.momentum=1.5",
        "train.weight_decay=-1",
        "train.seed=-1",
        "train.validation_share=0",
        "train.validation_share=1",
        "data.resize=0",
        "data.resize=[0, 5]",
        "data.test_share=1.0",
        "test.resize=0",
        "model.head=linear",
    ],
)
def test_values_that_make_no_sense_name_their_key(assignment):
    with pytest.raises(ConfigError, match=re.escape(assignment.split("=")[0].split(".")[-1])):
        override(Config(), [assignment])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.seed=9223372036854775808", "train.seed = 9223372036854775808: must be between 0 and 4294967295."),
        ("train.lr=1e308", "train.lr = 1e+308: must be between 0 and 1e+38."),
        ("model.width=100000", "model.width = 100000: must be between 1 and 1024."),
        ("protocol.shots=[5, 99999999]", "protocol.shots = [5, 99999999]: must be between 1 and 1000000."),
        ("data.test_share=1", "data.test_share = 1.0: must be more than 0 and less than 1."),
    ],
)
def test_a_value_out_of_its_bounds_names_them(assignment, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        override(Config(), [assignment])


@pytest.mark.parametrize("digits", ["9" * 40, "9" * 400, "9" * 5000, "0x" + "f" * 6000])
@pytest.mark.parametrize(
    "key",
    [key for key, value in flatten(Config()).items() if not isinstance(value, str) and key != "protocol.order"],
)
def test_no_number_is_without_bounds(key, digits):
    value = f"[{digits}]" if isinstance(flatten(Config())[key], list) else digits
    with pytest.raises(ConfigError) as caught:
        override(Config(), [f"{key}={value}"])
    assert key in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_recipe_with_too_many_digits_or_brackets(tmp_path):
    for value in ("9" * 5000, "[" * 5000):
        (tmp_path / "bad.toml").write_text(f"[train]\nepochs = {value}\n")
        with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
            load_recipe(tmp_path / "bad.toml")


def test_a_loss_of_another_package_has_any_name():
    assert override(Config(), ["loss.kind=my_loss"]).loss == LossConfig(kind="my_loss")


def test_sphereface_needs_a_factor_for_a_margin():
    with pytest.raises(ConfigError, match=r"loss\.margin must be at least 1"):
        override(Config(), ["loss.kind=sphereface"])


# Overrides


def test_overrides_are_toml_without_the_quotes():
    found = override(
        Config(),
        [
            "train.lr=0.5",
            " train.epochs = 7 ",
            "train.nesterov=false",
            "model.stem=imagenet",
            'model.backbone="timm:vit"',
            "model.weights=/home/me/a=b.pth",
            "protocol.shots=[10,2]",
            'protocol.order=["dog", "cat"]',
            "protocol.draw=3",
            "data.resize=none",
            "views.flip=1",
        ],
    )
    assert found.train == replace(TrainConfig(), lr=0.5, epochs=7, nesterov=False)
    assert found.model == ModelConfig(backbone="timm:vit", stem="imagenet", weights="/home/me/a=b.pth")
    assert found.protocol == ProtocolConfig(shots=(10, 2), order=("dog", "cat"), draw=3)
    assert found.data.resize is None
    assert (found.views.flip, type(found.views.flip)) == (1.0, float)


def test_the_last_override_counts():
    assert override(Config(), ["train.epochs=3", "train.lr=1.0", "train.epochs=5"]).train.epochs == 5
    assert override(Config(), ["train={epochs=3}", "train.lr=1"]).train == replace(TrainConfig(), epochs=3, lr=1.0)
    assert override(Config(), ["train.lr=1", "train={epochs=3}"]).train == replace(TrainConfig(), epochs=3, lr=1.0)


@pytest.mark.parametrize(
    "pair", [["loss.kind=sphereface", "loss.margin=2"], ["model.head=linear", "loss.kind=softmax"]]
)
def test_settings_that_only_fit_together_can_come_in_either_order(pair):
    assert override(Config(), pair) == override(Config(), pair[::-1]) != Config()


@pytest.mark.parametrize("assignment", ["train.lr", "=5", "", " = 5"])
def test_an_override_that_is_none(assignment):
    with pytest.raises(ConfigError, match="expected key=value"):
        override(Config(), [assignment])


def test_an_override_leaves_the_rest_alone():
    start = load_recipe("cub200")
    before, after = flatten(start), flatten(override(start, ["train.lr=0.5"]))
    assert {key for key in before if before[key] != after[key]} == {"train.lr"}


# Round trip

text = st.text(st.characters(codec="utf-8"), max_size=20)
number = st.floats(0, 1e6)
share = st.floats(0, 1)
configs = st.builds(
    Config,
    about=text,
    data=st.builds(
        DataConfig,
        name=text,
        resize=st.none() | st.integers(1, 999) | st.tuples(st.integers(1, 999), st.integers(1, 999)),
        interpolation=st.sampled_from(["bilinear", "bicubic"]),
        test_share=st.floats(0.01, 0.99),
    ),
    protocol=st.builds(
        ProtocolConfig,
        base_classes=st.none() | st.integers(1, 999),
        shots=st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple),
        draw=st.just("published") | st.integers(0, 2**40),
        order=st.lists(text, max_size=4).map(tuple),
    ),
    views=st.builds(
        ViewsConfig,
        ratio=st.tuples(st.floats(1e-9, 1), st.floats(1, 1e9)),
        flip=share,
        brightness=number,
    ),
    mixing=st.builds(MixingConfig, repeats=st.integers(0, 9), lam=st.sampled_from(["uniform", "beta"])),
    model=st.builds(ModelConfig, weights=text, backbone=text),
    loss=st.builds(LossConfig, scale=number, margin=number),
    train=st.builds(TrainConfig, lr=number, nesterov=st.booleans(), drops=st.lists(st.integers(0, 99)).map(tuple)),
)


@given(configs)
@example(Config(about='"\\\x00\x1f\x7f\x85\u2028é😀\r\n', model=ModelConfig(weights="none")))
def test_what_is_written_is_read_back(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_bytes(to_toml(config).encode())
    assert load_recipe(path) == config


@given(configs)
def test_plain_values_make_the_same_settings(config):
    nested: dict = {}
    for key, value in flatten(config).items():
        *section, name = key.split(".")
        (nested.setdefault(section[0], {}) if section else nested)[name] = value
    assert from_mapping(nested) == config


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_survive_the_round_trip(name, tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(to_toml(load_recipe(name)).encode())
    assert load_recipe(path) == load_recipe(name)


def test_a_recipe_written_by_hand_or_by_an_older_version_is_read(tmp_path):
    """Lists on one line, and settings of one section in any order."""
    path = tmp_path / "config.toml"
    path.write_text(
        '[test]\nresize = "none"\n[data]\nresize = [92, 92]\n[protocol]\nsessions = "none"\nshots = [5, 1]\n'
    )
    assert load_recipe(path) == replace(Config(), data=DataConfig(resize=(92, 92)))


@pytest.mark.parametrize("module", ["parsing", "recipes", "settings"])
def test_the_examples_are_true(module):
    failed, tried = doctest.testmod(import_module(f"fscil.config.{module}"))
    assert (failed, tried > 0) == (0, True)


# The paper's numbers


@pytest.fixture(scope="module")
def paper():
    return tomllib.loads((resources.files("fscil.experiments") / "paper.toml").read_text(encoding="utf-8"))


def test_all_rows_of_the_paper_are_there(paper):
    assert len(paper["result"]) == 32
    assert len(paper["ablation"]) == 7
    keys = [(row["data"], row["shots"], row["method"], row["source"]) for row in paper["result"]]
    assert len(set(keys)) == 32
    for row in paper["result"]:
        sessions = 11 if row["data"] == "cub200" else 9
        assert len(row["average"]) == sessions
        assert len(row.get("harmonic", row["average"][1:])) == sessions - 1
        assert ("harmonic" in row) == (row["source"] in ("rerun", "paper"))


def test_every_row_drops_from_first_to_last(paper):
    for row in paper["result"]:
        assert row["pd"] == pytest.approx(row["average"][0] - row["average"][-1], abs=0.0501)


def test_the_last_ablation_row_is_the_method(paper):
    *_, last = paper["ablation"]
    method = next(
        row for row in paper["result"] if (row["data"], row["shots"], row["method"]) == ("cifar100", 5, "alice")
    )
    assert last["average"] == method["average"]
    assert last["harmonic"] == method["harmonic"]
    switches = ["class_augmentation", "two_views", "projection", "balanced"]
    assert [[row[key] for key in switches] for row in paper["ablation"]] == [
        [False, False, False, False],
        [False, False, False, True],
        [False, False, False, False],
        [False, False, False, True],
        [False, False, True, True],
        [False, True, True, True],
        [True, True, True, True],
    ]
    assert [row["loss"] for row in paper["ablation"]] == ["softmax"] * 2 + ["cosface"] * 5


def rows_of(table):
    """The numbers of a table's rows: those of average accuracy, and those of harmonic accuracy."""
    halves = table.split("harmonic accuracy}")
    found = []
    for half in halves:
        lines = re.findall(r"^(.*&.*)\\\\", half, re.MULTILINE)
        cells = [[re.sub(r"\\textbf\{(.*?)\}", r"\1", cell).strip() for cell in line.split("&")] for line in lines]
        numbers = [[float(cell) for cell in line if re.fullmatch(r"\d+\.\d", cell)] for line in cells]
        found.append([line for line in numbers if line])
    return found


def test_numbers_are_those_printed_in_the_paper(paper, shared):
    path = shared / "paper" / "alice-eccv2022.tex"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    tables = re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", path.read_text(), re.DOTALL)
    ablation, *detailed = [table for table in tables if "harmonic accuracy}" in table]
    assert rows_of(ablation) == [[row[key] for row in paper["ablation"]] for key in ("average", "harmonic")]
    order = [(data, shots) for shots in (5, 1) for data in ("cifar100", "mini_imagenet", "cub200")]
    assert len(detailed) == len(order)
    for table, key in zip(detailed, order, strict=True):
        mine = [row for row in paper["result"] if (row["data"], row["shots"]) == key]
        average, harmonic = rows_of(table)
        assert average == [[*row["average"], row["pd"]] for row in mine]
        assert harmonic == [row["harmonic"] for row in mine if "harmonic" in row]


def test_a_difference_names_the_first_setting_and_counts_the_rest():
    mine = load_recipe("cifar100", ["train.lr=0.2", "train.seed=3", "about=mine"])
    there = load_recipe("cifar100")
    assert difference(mine, mine) == ""
    assert difference(mine, there, ["about"]) == "train.lr = 0.01 there, 0.2 here, and 1 more"
    assert difference(mine, there, ["about", "train.lr"]) == "train.seed = 0 there, 3 here"
    assert difference(mine, there, ["about", "train.lr", "train.seed"]) == ""
