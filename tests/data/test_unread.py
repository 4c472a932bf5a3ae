"""Picture files that are not read are counted by kind, wherever a folder of photos is read."""

import warnings

import pytest
from PIL import Image

from fscil.data import folder, photos
from fscil.errors import DataError, FscilWarning

WANTED = r"3 files were skipped: 2 TIFF, 1 AVIF \(.*\); convert them to JPEG or PNG\.$"


@pytest.fixture
def scans(tmp_path):
    """Two classes with a photo each, and real files of other kinds, one of them hidden."""
    names = ("ant/1.png", "bee/2.jpg", "ant/a.TIF", "bee/deep/b.tiff", "bee/c.avif", "bee/.d.tif")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), "red").save(path)
    return tmp_path


@pytest.mark.parametrize(
    "read",
    [
        photos.files,
        folder.whole,
        lambda root: photos.labelled(root, "test"),
        lambda root: photos.labelled(root, "train"),
    ],
    ids=["files", "fit", "check", "enroll"],
)
def test_they_are_named_and_the_others_read(scans, read):
    with pytest.warns(FscilWarning, match=WANTED) as caught:
        found = read(scans)
    assert len(caught) == 1
    assert len(found.train if hasattr(found, "train") else found) == 2


def test_silent_where_asked_and_where_there_are_none(scans):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(photos.files(scans, warn=False)) == 2
        for name in ("ant/a.TIF", "bee/deep/b.tiff", "bee/c.avif"):
            (scans / name).unlink()
        assert len(photos.files(scans)) == 2


def test_nothing_else_in_it(scans):
    for name in ("ant/1.png", "bee/2.jpg"):
        (scans / name).unlink()
    with pytest.warns(FscilWarning, match=WANTED), pytest.raises(DataError, match="no image in it"):
        photos.labelled(scans, "test")


@pytest.mark.parametrize(("kind", "suffix"), [("TIFF", "tif"), ("AVIF", "avif"), ("TIFF", "jpg")])
def test_a_single_one_is_an_error_that_names_its_kind(tmp_path, kind, suffix):
    path = tmp_path / f"x.{suffix}"
    Image.new("RGB", (8, 6)).save(path, kind)
    with pytest.raises(DataError, match=rf"x\.{suffix}: {kind} is not read; convert it to JPEG or PNG"):
        photos.pixels(path, photos.Resize())
