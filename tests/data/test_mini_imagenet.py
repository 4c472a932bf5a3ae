import numpy as np
import pytest

from fscil.data import load
from fscil.errors import DataError

CLASSES = ("n01532829", "n03544143", "n04149813")
# Not sorted by class or name: the order of the list is the order of the images.
TRAIN = [(f"{label}{number:08}.jpg", label) for label in (CLASSES[2], CLASSES[0], CLASSES[1]) for number in (9, 1, 5)]
TEST = [(f"{label}{number:08}.jpg", label) for label in CLASSES for number in (7, 3)]


def write_list(path, rows, header="filename,label"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")


@pytest.fixture
def build(tmp_path, picture):
    """build(place, lists) makes the data set with its images where place(part, label) says."""

    def make(place, lists=""):
        pixels = {}
        for part, rows in (("train", TRAIN), ("test", TEST)):
            write_list(tmp_path / lists / f"{part}.csv", rows)
            for name, label in rows:
                path = tmp_path / place.format(part=part, label=label) / name
                pixels[name] = picture(path.with_suffix(".png"), seed=len(pixels))
                path.with_suffix(".png").rename(path)  # lossless, whatever it is called
        return tmp_path, pixels

    return make


@pytest.mark.parametrize("place", ["images", "images/{label}", "{part}/{label}", "{part}", "{label}", "."])
@pytest.mark.parametrize("lists", ["", "split"])
def test_every_layout_gives_the_same(build, place, lists):
    root, pixels = build(place, lists)
    dataset = load("mini_imagenet", root)
    assert dataset.class_names == CLASSES
    assert dataset.benchmark
    for images, rows in ((dataset.train, TRAIN), (dataset.test, TEST)):
        assert images.labels.tolist() == [CLASSES.index(label) for _, label in rows]
        expected = np.stack([pixels[name] for name, _ in rows])
        np.testing.assert_array_equal(images.batch(np.arange(len(rows)))[0], expected)


def test_names_may_bring_their_folder(build):
    root, pixels = build("images/{label}")
    write_list(root / "train.csv", [(f"{label}/{name}", label) for name, label in TRAIN])
    train = load("mini_imagenet", root).train
    np.testing.assert_array_equal(train.batch(np.array([2]))[0][0], pixels[TRAIN[2][0]])


def test_missing_images_are_counted_and_named(build):
    root, _ = build("images")
    (root / "images" / TRAIN[4][0]).unlink()
    (root / "images" / TEST[0][0]).unlink()
    with pytest.raises(DataError) as caught:
        load("mini_imagenet", root)
    for words in ("list 15 files, 2 are missing", f"first: {TRAIN[4][0]}, {TEST[0][0]}", "ILSVRC-2012"):
        assert words in str(caught.value)


@pytest.mark.parametrize("lost", ["train.csv", "test.csv"])
def test_a_missing_list_says_what_is_expected(build, lost):
    root, _ = build("images")
    (root / lost).unlink()
    with pytest.raises(DataError, match=rf"{lost}.*no official download.*filename,label"):
        load("mini_imagenet", root)


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "a/../../secret.jpg", "C:\\x.jpg", "..\\x.jpg", ""])
def test_names_that_leave_the_folder_are_refused(build, name):
    root, _ = build("images")
    (root.parent / "secret.jpg").write_bytes(b"x")
    write_list(root / "train.csv", [(name, CLASSES[0])])
    with pytest.raises(DataError, match="is not a path inside the data set"):
        load("mini_imagenet", root)
    (root.parent / "secret.jpg").unlink()


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("a.jpg", "..")], "filename,label", r"line 2: '\.\.' is not a WordNet id"),
        ([("a.jpg",)], "filename,label", "'' is not a WordNet id"),
        ([("a.jpg", CLASSES[0])], "file,class", "expected the columns filename,label, found file,class"),
        ([], "filename,label", "lists no images"),
        ([], "", "expected the columns"),
        (TEST[:1], "filename,label", r"1 images are in train\.csv and in test\.csv"),
        (TRAIN[:3], "filename,label", "test.csv has classes that train.csv has not: n01532829, n03544143"),
    ],
)
def test_lists_that_cannot_be_right(build, rows, header, message):
    root, _ = build("images")
    write_list(root / "train.csv", rows, header)
    with pytest.raises(DataError, match=message):
        load("mini_imagenet", root)
