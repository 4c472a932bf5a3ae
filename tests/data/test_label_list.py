"""Photos listed in a CSV file, for fit and check."""

import shutil

import pytest

from fscil.data import folder, photos
from fscil.data.label_list import label_list, read_label_list
from fscil.errors import DataError
from helpers import write_images


@pytest.fixture
def listed(tmp_path):
    """images/ and labels.csv beside it."""
    made = write_images(tmp_path / "made", train=2, test=0, split=False)
    lines = ["filename,species,notes"]
    (tmp_path / "photos" / "images").mkdir(parents=True)
    for number, path in enumerate(sorted(made.glob("*/*"))):
        shutil.copy(path, tmp_path / "photos" / "images" / f"{number}.png")
        lines.append(f"{number}.png,{path.parent.name},x")
    (tmp_path / "photos" / "labels.csv").write_text("\n".join([*lines, ""]), encoding="utf-8-sig")
    return tmp_path / "photos", [path.parent.name for path in sorted(made.glob("*/*"))]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_list_says_what_the_photos_show(listed, what):
    root, names = listed
    place = root if what == "folder" else root / "labels.csv"
    assert [name for _, name in photos.labelled(place, "test")] == names
    found = folder.whole(place)
    assert [found.class_names[label] for label in found.train.labels] == names
    assert (found.train.pixels.root / found.train.name(3)).read_bytes() == (root / "images" / "3.png").read_bytes()


def test_what_is_wrong_with_a_list_is_said_with_its_line(tmp_path):
    file = tmp_path / "list.csv"
    for content, message in (
        ("", "names no path or no label"),
        ("path,colour\na,b\n", "names no path or no label"),
        ("path,label\n", "no photo in it"),
        ("path,label\n\nx.png\n", "line 3 has no path or no label"),
        ("path,label\ngone.png,robin\n", r"line 2: there is no file .*gone\.png"),
        (f"path,label\n{'x' * 5000}.png,robin\n", r"line 2: no file can have the path 'xxx"),
        ("path,label\n~nobody here/a.png,robin\n", r"line 2: no file can have the path '~nobody"),
    ):
        file.write_text(content)
        with pytest.raises(DataError, match=message):
            read_label_list(file)
    assert label_list(tmp_path) is None
    assert label_list(file) == file
