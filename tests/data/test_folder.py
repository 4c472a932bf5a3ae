import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fscil.data import folder, load
from fscil.errors import DataError, FscilWarning


def names(images):
    return [images.name(place) for place in range(len(images))]


@pytest.fixture
def pets(tmp_path, picture):
    for name, count in (("dog", 10), ("cat", 5), ("axolotl", 1)):
        for number in range(count):
            picture(tmp_path / name / f"{number}.png", seed=number)
    return tmp_path


def test_classes_are_folders_and_a_share_is_held_out(pets):
    dataset = load("folder", pets, test_share=0.4)
    assert dataset.class_names == ("axolotl", "cat", "dog")
    assert not dataset.benchmark
    assert dataset.train.counts == {0: 1, 1: 3, 2: 6}
    assert dataset.test.counts == {1: 2, 2: 4}
    assert sorted(names(dataset.train) + names(dataset.test)) == sorted(
        path.relative_to(pets).as_posix() for path in pets.rglob("*.png")
    )
    for images in (dataset.train, dataset.test):
        assert [dataset.class_names[label] for label in images.labels] == [name.split("/")[0] for name in names(images)]


def test_the_share_is_a_matter_of_the_seed(pets):
    assert names(load("folder", pets).test) == names(load("folder", pets, seed=0).test)
    draws = {tuple(names(load("folder", pets, seed=seed).test)) for seed in range(8)}
    assert len(draws) > 4


def test_another_class_leaves_the_held_out_images_of_the_others(pets, picture):
    before = names(load("folder", pets).test)
    for number in range(9):
        picture(pets / "bird" / f"{number}.png")
    assert [name for name in names(load("folder", pets).test) if not name.startswith("bird/")] == before


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Classes of 1, 2, … 40 images; nothing is decoded, so that empty files will do."""
    root = tmp_path_factory.mktemp("many")
    for count in range(1, 41):
        (root / f"{count:02}").mkdir()
        for number in range(count):
            (root / f"{count:02}" / f"{number}.png").touch()
    return root


@settings(max_examples=30)
@given(share=st.floats(0.001, 0.999), seed=st.integers(0, 99))
def test_train_and_test_always_have_images(many, share, seed):
    dataset = load("folder", many, test_share=share, seed=seed)
    assert not set(names(dataset.train)) & set(names(dataset.test))
    for label, name in enumerate(dataset.class_names):
        count, held = int(name), dataset.test.counts.get(label, 0)
        assert dataset.train.counts[label] == count - held > 0
        assert bool(held) == (count > 1)
        assert abs(held - share * count) <= 1 or count == 1


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0])
def test_an_impossible_share(pets, share):
    with pytest.raises(DataError, match="test_share"):
        load("folder", pets, test_share=share)


@pytest.fixture
def parted(tmp_path, picture):
    for part, name, count in (("train", "a", 3), ("train", "b", 2), ("test", "a", 2)):
        for number in range(count):
            picture(tmp_path / part / name / f"{part}{number}.png", seed=number)
    return tmp_path


def test_a_train_and_a_test_part(parted):
    dataset = load("folder", parted)
    assert dataset.class_names == ("a", "b")
    assert names(dataset.train) == [f"train/a/train{n}.png" for n in range(3)] + [
        f"train/b/train{n}.png" for n in (0, 1)
    ]
    assert names(dataset.test) == ["test/a/test0.png", "test/a/test1.png"]
    assert dataset.test.labels.tolist() == [0, 0]


def test_a_train_part_alone_is_held_out_from(parted):
    (parted / "test" / "a" / "test0.png").unlink()
    (parted / "test" / "a" / "test1.png").unlink()
    (parted / "test" / "a").rmdir()
    (parted / "test").rmdir()
    dataset = load("folder", parted)
    assert dataset.class_names == ("a", "b")
    assert (dataset.train.counts, dataset.test.counts) == ({0: 2, 1: 1}, {0: 1, 1: 1})


def test_a_test_class_that_was_never_trained_on(parted, picture):
    picture(parted / "test" / "zebra" / "0.png")
    with pytest.raises(DataError, match="zebra"):
        load("folder", parted)


def test_other_parts_are_reported(parted, picture):
    picture(parted / "val" / "a" / "0.png")
    with pytest.warns(FscilWarning, match="only train/ and test/ .* not val"):
        load("folder", parted)
    (parted / "test").rename(parted / "hidden")
    with pytest.raises(DataError, match=r"hidden, val, but no test/.*rename it to test"):
        load("folder", parted)


def test_a_class_may_be_called_train(tmp_path, picture):
    for name in ("train", "bus", "test"):
        picture(tmp_path / name / "0.png")
    assert load("folder", tmp_path).class_names == ("bus", "test", "train")


def test_nested_files_count_hidden_and_other_files_do_not(tmp_path, picture):
    for path in ("a/deep/er/0.PNG", "a/1.png", "a/.2.png", "a/.git/3.png", ".hidden/4.png"):
        picture(tmp_path / path)
    (tmp_path / "a" / "notes.txt").write_text("x")
    (tmp_path / "readme.md").write_text("x")
    assert sorted(names(load("folder", tmp_path).train) + names(load("folder", tmp_path).test)) == [
        "a/1.png",
        "a/deep/er/0.PNG",
    ]


def test_images_of_other_formats_are_reported(pets):
    (pets / "cat" / "scan.TIFF").write_bytes(b"x")
    with pytest.warns(FscilWarning, match=r"1 file was skipped: 1 TIFF \(cat/scan\.TIFF\); convert"):
        assert load("folder", pets).class_names == ("axolotl", "cat", "dog")


def test_heic_counts_where_its_extra_is_installed(pets):
    pytest.importorskip("pillow_heif", reason="the heic extra is not installed")
    (pets / "cat" / "phone.HEIC").write_bytes(b"x")
    dataset = load("folder", pets)
    assert "cat/phone.HEIC" in names(dataset.train) + names(dataset.test)


def test_heic_without_its_extra_names_the_extra(pets, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (pets / "cat" / "phone.HEIC").write_bytes(b"x")
    with pytest.warns(FscilWarning, match=r'1 HEIC \(cat/phone\.HEIC\); .*pip install .*\[heic\]"'):
        dataset = load("folder", pets)
    assert "cat/phone.HEIC" not in names(dataset.train) + names(dataset.test)


def test_the_whole_folder_holds_nothing_out(pets):
    dataset = folder.whole(pets)
    assert dataset.train.counts == {0: 1, 1: 5, 2: 10}
    assert len(dataset.test) == 0
    assert dataset.class_names == ("axolotl", "cat", "dog")


def test_of_a_folder_with_parts_the_whole_is_its_train_part(parted):
    dataset = folder.whole(parted)
    assert names(dataset.train) == [f"train/a/train{n}.png" for n in range(3)] + [
        f"train/b/train{n}.png" for n in (0, 1)
    ]
    assert len(dataset.test) == 0


def test_an_empty_class_is_reported(pets):
    (pets / "ghost").mkdir()
    with pytest.warns(FscilWarning, match="without images: ghost"):
        assert load("folder", pets).class_names == ("axolotl", "cat", "dog")


def test_names_are_composed_unicode(tmp_path, picture):
    name = "Bär"
    decomposed = unicodedata.normalize("NFD", name)
    picture(tmp_path / "train" / decomposed / "0.png")
    picture(tmp_path / "test" / name / "0.png")
    dataset = load("folder", tmp_path)
    assert dataset.class_names == (name,)
    assert (len(dataset.train), len(dataset.test)) == (1, 1)
    assert dataset.train.batch(np.array([0]))[0].shape == (1, 6, 8, 3)


def test_links_in_a_circle_end(pets, picture, tmp_path_factory):
    (pets / "cat" / "loop").symlink_to(pets, target_is_directory=True)
    (pets / "loop").symlink_to(pets, target_is_directory=True)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    picture(elsewhere / "0.png")
    (pets / "linked").symlink_to(elsewhere, target_is_directory=True)
    dataset = load("folder", pets)
    assert dataset.class_names == ("axolotl", "cat", "dog", "linked")
    assert dataset.train.counts[1] + dataset.test.counts[1] == 5


@pytest.mark.parametrize("content", ["nothing", "no folder", "a file", "loose images"])
def test_no_classes_say_what_is_expected(tmp_path, picture, content):
    root = tmp_path / "root"
    if content == "a file":
        root.write_text("x")
    elif content != "no folder":
        root.mkdir()
    if content == "loose images":
        picture(root / "0.png")
    with pytest.raises(DataError, match="DIR/<class>/<images>"):
        load("folder", root)


def test_a_group_of_a_single_class_is_noticed_beside_a_larger_one(tmp_path, picture):
    for path in ("acer/rubrum/1.png", "acer/saccharum/2.png", "quercus/alba/3.png"):
        picture(tmp_path / path)
    with pytest.warns(FscilWarning, match="read as 2 classes, but their images lie in 3 folders"):
        folder.whole(tmp_path)


def test_one_folder_below_each_class_is_no_group(tmp_path, picture):
    for path in ("acer/photos/1.png", "quercus/photos/2.png"):
        picture(tmp_path / path)
    assert folder.whole(tmp_path).class_names == ("acer", "quercus")  # a warning would be an error here


def test_folders_of_class_folders_are_noticed(tmp_path, picture):
    """Genus and species, read as classes by genus."""
    for path in ("acer/rubrum/1.png", "acer/saccharum/2.png", "quercus/alba/3.png", "quercus/rubra/4.png"):
        picture(tmp_path / path)
    with pytest.warns(
        FscilWarning, match=r"read as 2 classes, but their images lie in 4 folders below them .acer/rubrum, "
    ):
        assert folder.whole(tmp_path).class_names == ("acer", "quercus")
    picture(tmp_path / "acer/0.png")
    picture(tmp_path / "quercus/0.png")
    assert len(folder.whole(tmp_path).train) == 6, "classes that keep some of their images apart"
