import shutil

import numpy as np
import pytest
from PIL import Image

from fscil.data import load
from fscil.data.images import decode
from fscil.errors import DataError

IMAGES = [
    # number, path, species, in the training part
    (1, "001.Black_footed_Albatross/b.png", 1, 0),
    (2, "001.Black_footed_Albatross/a.png", 1, 1),
    (3, "002.Laysan_Albatross/x.png", 2, 1),
    (4, "002.Laysan_Albatross/y.png", 2, 1),
    (5, "003.Sooty_Albatross/z.png", 3, 0),
    (6, "003.Sooty_Albatross/gray.png", 3, 1),
]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def birds(tmp_path, picture):
    home = tmp_path / "birds" / "CUB_200_2011"
    for number, path, _, _ in IMAGES:
        picture(home / "images" / path, 5 + number, 9, seed=number)
    Image.new("L", (4, 3), 77).save(home / "images" / "003.Sooty_Albatross/gray.png")
    write(home / "images.txt", [f"{number} {path}" for number, path, _, _ in IMAGES])
    # The lists are joined by the number of the image, not by the line.
    write(home / "image_class_labels.txt", [f"{number} {label}" for number, _, label, _ in reversed(IMAGES)])
    write(home / "train_test_split.txt", [f"{number} {train}" for number, _, _, train in reversed(IMAGES)])
    return home


def test_the_folder_or_its_parent(birds):
    for root in (birds, birds.parent, str(birds)):
        dataset = load("cub200", root)
        assert dataset.class_names == ("Black footed Albatross", "Laysan Albatross", "Sooty Albatross")
        assert dataset.benchmark
        assert dataset.train.labels.tolist() == [0, 1, 1, 2]
        assert dataset.test.labels.tolist() == [0, 2]
        assert [dataset.train.name(place) for place in range(4)] == [IMAGES[row][1] for row in (1, 2, 3, 5)]
        pixels, sizes = dataset.test.batch(np.array([1]))
        np.testing.assert_array_equal(pixels[0], decode(birds / "images" / IMAGES[4][1]))
        assert sizes.tolist() == [[10, 9]]


def test_gray_photographs_count(birds):
    pixels, _ = load("cub200", birds).train.batch(np.array([3]))
    np.testing.assert_array_equal(pixels, np.full((1, 3, 4, 3), 77))


def test_missing_photographs_are_counted_and_named(birds):
    for row in (2, 4):
        (birds / "images" / IMAGES[row][1]).unlink()
    with pytest.raises(DataError) as caught:
        load("cub200", birds.parent)
    for words in (
        "images.txt lists 6 files, 2 are missing",
        "first: 002.Laysan_Albatross/x.png, 003.Sooty_Albatross/z.png",
        f'Run "fscil data cub200 --root {birds.parent} --download" to fetch them.',
    ):
        assert words in str(caught.value)


def test_a_missing_folder_of_photographs_names_some(birds):
    shutil.rmtree(birds / "images")
    with pytest.raises(DataError, match=r"6 are missing.*x\.png, …\)"):
        load("cub200", birds)


def test_nothing_there_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"images\.txt.*--download"):
        load("cub200", tmp_path / "nowhere")


@pytest.mark.parametrize("lost", ["image_class_labels.txt", "train_test_split.txt"])
def test_a_missing_list_is_named(birds, lost):
    (birds / lost).unlink()
    with pytest.raises(DataError, match=rf"{lost}: no such file\. Run .*--download"):
        load("cub200", birds)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("images.txt", ["1"], r"line 1: expected .number value."),
        ("images.txt", ["1 a/b.jpg", "1 a/c.jpg"], "line 2: expected .number value. with a new number"),
        ("images.txt", ["1 ../../secret.jpg"], "is not a path inside"),
        ("images.txt", ["1 a\0b/c.jpg"], "is not a path inside"),
        ("train_test_split.txt", [f"{number} {10**30}" for number in range(1, 7)], "too large"),
        ("train_test_split.txt", ["1 0", "2 1"], "lists 2 images, images.txt 6"),
        ("train_test_split.txt", [f"{number} yes" for number in range(1, 7)], "not whole numbers"),
        ("image_class_labels.txt", [f"{number} {number + 1}" for number in range(1, 7)], "without a gap"),
    ],
)
def test_lists_that_cannot_be_right(birds, name, lines, message):
    write(birds / name, lines)
    if name == "images.txt":
        for other in ("image_class_labels.txt", "train_test_split.txt"):
            write(birds / other, ["1 1"])
    with pytest.raises(DataError, match=message):
        load("cub200", birds)


def test_the_real_one(shared):
    root = shared("CUB_200_2011")
    dataset = load("cub200", root)
    assert (len(dataset.train), len(dataset.test), len(dataset.class_names)) == (5994, 5794, 200)
    assert len(dataset.train.of_classes(range(100))) == 3000
    lines = (root / "classes.txt").read_text().split("\n")[:200]
    listed = [line.strip().split(".", 1)[1].replace("_", " ") for line in lines]
    assert list(dataset.class_names) == listed
