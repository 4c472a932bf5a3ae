import doctest
import subprocess
import sys

import numpy as np
import pytest

import fscil.data
from fscil.data import DATASETS, Dataset, Images, Resize, cache, load, prepare
from fscil.data.describe import describe
from fscil.data.download import download
from fscil.data.images import ArrayPixels
from fscil.errors import DataError


def test_importing_and_loading_stays_light(tmp_path, picture):
    picture(tmp_path / "cat" / "0.png")
    program = (
        "import sys, fscil.data\n"
        f"fscil.data.load('folder', {str(tmp_path)!r})\n"
        "print([name for name in ('torch', 'matplotlib', 'sklearn', 'scipy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar10", "cifar100"),
        ("CIFAR100", "cifar100"),
        ("cub", "cub200"),
        ("mini-imagenet", "mini_imagenet"),
        ("miniimagenet", "mini_imagenet"),
        ("glyph", "glyphs"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(DataError, match=f'no data set named "{name}". Did you mean "{near}"'):
        load(name, "anywhere")


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(DataError) as caught:
        load("xyzzy", "anywhere")
    assert "Did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in DATASETS)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"glyphs"}))
def test_only_glyphs_needs_no_root(name):
    with pytest.raises(DataError, match=f"{name}: where are its files"):
        load(name)


def test_a_root_may_be_text_and_start_at_home(tmp_path, picture, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    picture(tmp_path / "pets" / "cat" / "0.png")
    for root in (str(tmp_path / "pets"), tmp_path / "pets", "~/pets"):
        dataset = load("folder", root)
        assert isinstance(dataset, Dataset)
        assert isinstance(dataset.train, Images)
        assert prepare(dataset, Resize((2, 2)), tmp_path / "cache", quiet=True).train.batch(np.array([0]))[0].shape == (
            1,
            2,
            2,
            3,
        )


def test_options_reach_the_loader(tmp_path, picture):
    for number in range(10):
        picture(tmp_path / "cat" / f"{number}.png")
    assert len(load("folder", tmp_path, test_share=0.5).test) == 5


def test_describe_counts_and_sizes(tmp_path, picture):
    for name, count in (("cat", 4), ("dog", 2)):
        for number in range(count):
            picture(tmp_path / "train" / name / f"{number}.png", 6 + number, 8)
    picture(tmp_path / "test" / "cat" / "0.png", 5, 5)
    assert describe("folder", tmp_path).splitlines() == [
        f"folder in {tmp_path}: 2 classes",
        "  train  6 images of 2 classes, 2 to 4 per class; 8 pixels wide, 6 to 9 high (6 decoded)",
        "  test   1 images of 1 classes, 1 per class; 5 pixels wide, 5 high (1 decoded)",
    ]


def test_describe_reports_damage_and_empty_parts(tmp_path, picture):
    picture(tmp_path / "cat" / "0.png")
    (tmp_path / "cat" / "0.png").write_bytes(b"x")
    train, test = describe("folder", tmp_path).splitlines()[1:]
    assert "sizes unknown; of 1 that were decoded 1 are damaged (first: " in train
    assert test == "  test   no images"


@pytest.fixture
def npz(tmp_path):
    def write(train, test):
        np.savez(
            tmp_path / "cifar100.npz",
            train_x=np.zeros((len(train), 32, 32, 3), np.uint8),
            train_y=train,
            test_x=np.zeros((len(test), 32, 32, 3), np.uint8),
            test_y=test,
        )
        return tmp_path

    return write


def test_describe_knows_the_published_numbers(npz):
    text = describe("cifar100", npz(np.arange(50000) % 100, np.arange(10000) % 100))
    assert "100 classes" in text
    assert "50000 images of 100 classes, 500 per class; 32 pixels wide, 32 high" in text
    assert text.endswith("numbers of classes and images as published")


def test_describe_says_what_is_unusual(npz):
    text = describe("cifar100", npz(np.arange(50000) % 99, np.arange(500) % 100))
    assert "not as published: 505 to 506 train images per class instead of 500" in text
    assert "not as published: 500 test images instead of 10000" in text


def test_describe_of_what_is_not_there_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match="--download"):
        describe("cub200", tmp_path)


def test_describe_counts_classes(tmp_path, picture):
    (tmp_path / "train.csv").write_text("filename,label\na.png,n00000001\n")
    (tmp_path / "test.csv").write_text("filename,label\nb.png,n00000001\n")
    for name in ("a", "b"):
        picture(tmp_path / "images" / f"{name}.png")
    assert "not as published: 1 classes instead of 100" in describe("mini_imagenet", tmp_path)


# A data set of another package


@pytest.fixture
def dots():
    """A registered data set that needs no files, unless it is given a folder: then its one image is there."""

    @DATASETS.register("dots")
    def load_dots(root=None, size=4):
        count = 6 if root is None else len(list(root.glob("*.png")))
        images = Images.of(ArrayPixels(np.zeros((count, size, size, 3), np.uint8), "dot"), [0] * count)
        return Dataset(images, images.select([]), ("dot",), "dots")

    yield "dots"
    DATASETS.unregister("dots")


def test_a_registered_data_set_is_loaded_and_described(dots, tmp_path, picture):
    assert len(load(dots).train) == 6
    assert describe(dots, size=5).splitlines() == [
        "dots: 1 classes",
        "  train  6 images of 1 classes, 6 per class; 5 pixels wide, 5 high (6 decoded)",
        "  test   no images",
    ]
    picture(tmp_path / "0.png")
    assert len(load(dots, tmp_path).train) == 1
    assert describe(dots, tmp_path).startswith(f"dots in {tmp_path}: 1 classes\n")
    small = prepare(load(dots), Resize(2), tmp_path / "cache", quiet=True).train
    assert small.pixels.read(small.rows).shape == (6, 2, 2, 3)


def test_a_registered_data_set_is_listed_and_cannot_be_downloaded(dots, tmp_path):
    with pytest.raises(DataError, match=r"Installed: .*dots\.$"):
        load("xyzzy")
    with pytest.raises(DataError, match=r"^dots: no address to download it from is known\. Put its files into"):
        download(dots, tmp_path)


def test_a_registered_data_set_whose_files_are_needed(tmp_path):
    @DATASETS.register("needy")
    def load_needy(root):
        raise AssertionError(root)

    try:
        with pytest.raises(DataError, match="needy: where are its files"):
            load("needy")
    finally:
        DATASETS.unregister("needy")


@pytest.mark.parametrize("module", [fscil.data, cache])
def test_the_examples_are_true(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)
