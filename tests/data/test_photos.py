"""One photo from anywhere: the same picture is the same photo, however it comes."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from fscil.data import photos
from fscil.data.images import Resize
from fscil.errors import BadImageError, DataError

SMALL = Resize(20)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


def stored(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def every_way(tmp_path):
    """The same picture as a path, text, bytes, a Pillow image and an array."""
    path = tmp_path / "写真 é.png"
    path.write_bytes(stored(Image.fromarray(PIXELS)))
    return [path, str(path), path.read_bytes(), Image.open(path), Image.fromarray(PIXELS), PIXELS]


def test_every_way_gives_the_same_photo(every_way):
    found = [photos.load(source, SMALL) for source in every_way]
    wanted = np.asarray(Image.fromarray(PIXELS).resize((30, 20), Image.Resampling.BILINEAR))
    for loaded in found:
        np.testing.assert_array_equal(loaded.pixels, wanted)
    assert len({loaded.digest for loaded in found}) == 1
    for source in every_way:
        np.testing.assert_array_equal(photos.pixels(source, SMALL), wanted)


def test_where_a_photo_came_from(every_way):
    path = str(every_way[0])
    assert [photos.load(source, SMALL).source for source in every_way] == [path, path, "bytes", path, "image", "array"]


def test_a_name_that_is_no_unicode_can_be_written_down(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.png")
    path.write_bytes(stored(Image.fromarray(PIXELS)))
    assert photos.load(path, SMALL).source.encode().endswith(rb"caf\udce9.png")


def test_the_digest_is_of_the_full_picture(every_way):
    assert photos.load(PIXELS, Resize(8)).digest == photos.load(PIXELS, Resize()).digest
    other = PIXELS.copy()
    other[39, 59, 2] ^= 1
    assert photos.load(other, SMALL).digest != photos.load(PIXELS, SMALL).digest
    assert photos.load(PIXELS.reshape(60, 40, 3), SMALL).digest != photos.load(PIXELS, SMALL).digest


@pytest.mark.parametrize("as_file", [True, False])
def test_a_photo_is_turned_upright(as_file):
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned right by a quarter
    content = stored(Image.fromarray(np.rot90(PIXELS)), exif=turned)
    source = content if as_file else Image.open(io.BytesIO(content))
    np.testing.assert_array_equal(photos.pixels(source, Resize()), PIXELS)
    assert photos.load(source, SMALL).digest == photos.load(PIXELS, SMALL).digest


def test_what_is_transparent_is_white():
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    for source in (clear, stored(clear)):
        assert (photos.pixels(source, Resize()) == 255).all()


def test_the_thumbnail_is_a_small_jpeg():
    loaded = photos.load(np.full((400, 200, 3), (200, 30, 30), np.uint8), Resize(150))
    assert loaded.thumbnail[:2] == b"\xff\xd8"
    with Image.open(io.BytesIO(loaded.thumbnail)) as small:
        assert (small.format, small.size) == ("JPEG", (48, 96))
        red, green, blue = small.convert("RGB").getpixel((24, 48))
    assert red > 150 > 80 > max(green, blue)
    assert len(loaded.thumbnail) < 4000


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (b"no image", "not a JPEG"),
        (stored(Image.fromarray(PIXELS))[:-3000], "corrupt or truncated"),
        (PIXELS / 255, r"float64 with shape \(40, 60, 3\)"),
        (PIXELS[..., 0], r"shape \(40, 60\)"),
        (PIXELS[:0], r"shape \(0, 60, 3\)"),
        (Image.open(io.BytesIO(stored(Image.fromarray(PIXELS))[:-3000])), "corrupt or truncated"),
    ],
)
def test_what_is_no_photo(source, what):
    with pytest.raises(BadImageError, match=what):
        photos.load(source, SMALL)


def test_of_a_strip_the_central_part_is_stretched(tmp_path):
    Image.new("RGB", (1, 5000)).save(tmp_path / "strip.png")
    assert photos.pixels(tmp_path / "strip.png", Resize(256)).shape == (1024, 256, 3)
    assert photos.load(tmp_path / "strip.png", Resize(256)).pixels.shape == (1024, 256, 3)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jpg: cannot be read \(No such file"):
        photos.load(tmp_path / "gone.jpg", SMALL)


def test_one_or_many():
    assert photos.as_list("a.jpg") == ["a.jpg"]
    assert photos.as_list(["a.jpg", b"x"]) == ["a.jpg", b"x"]
    assert photos.as_list(b"x") == [b"x"]
    assert [each.shape for each in photos.as_list(PIXELS)] == [(40, 60, 3)]
    assert [each.shape for each in photos.as_list(PIXELS[None].repeat(3, 0))] == [(40, 60, 3)] * 3


@pytest.fixture
def folder(tmp_path):
    for name in ("b.jpg", "a/2.PNG", "a/1.webp", "a/deep/3.heic", "c/notes.txt", ".hidden/4.jpg", "a/.5.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def test_the_images_of_a_folder(folder):
    assert [path.relative_to(folder).as_posix() for path in photos.files(folder)] == [
        "a/1.webp",
        "a/2.PNG",
        "a/deep/3.heic",
        "b.jpg",
    ]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="gone: cannot be read"):
        photos.files(tmp_path / "gone")


def test_the_class_is_the_folder(folder):
    found = [(path.name, label) for path, label in photos.labelled(folder, "test")]
    assert found == [("1.webp", "a"), ("2.PNG", "a"), ("3.heic", "a"), ("b.jpg", None)]


def test_a_part_of_a_folder_with_parts(tmp_path):
    for name in ("train/a/1.jpg", "test/b/2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    for part, label in (("train", "a"), ("test", "b")):
        assert [label for _, label in photos.labelled(tmp_path, part)] == [label]


def test_a_folder_with_a_train_part_alone(tmp_path):
    """As `fit` reads it: train is no class."""
    (tmp_path / "train" / "ant").mkdir(parents=True)
    Image.new("RGB", (3, 3)).save(tmp_path / "train" / "ant" / "1.png")
    for part in ("train", "test"):
        assert photos.labelled(tmp_path, part) == [(tmp_path / "train" / "ant" / "1.png", "ant")]


def test_a_folder_without_images(tmp_path):
    with pytest.raises(DataError, match=r"no image in it.*DIR/<class>"):
        photos.labelled(tmp_path, "test")
