import io
import sys
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fscil.data.images import FORMATS, ArrayPixels, FilePixels, Images, Resize, decode
from fscil.errors import BadImageError, DataError, UnsupportedImageError

RAMP = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


def stored(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_formats_come_back_as_they_were(kind, tmp_path):
    path = tmp_path / "image"
    Image.fromarray(RAMP).save(path, kind, **({"lossless": True} if kind == "WEBP" else {}))
    np.testing.assert_array_equal(decode(path), RAMP)
    np.testing.assert_array_equal(decode(io.BytesIO(path.read_bytes())), RAMP)


def test_gray_images_become_three_equal_channels():
    gray = RAMP[..., 0]
    np.testing.assert_array_equal(decode(stored(Image.fromarray(gray))), np.stack([gray] * 3, -1))


def test_sixteen_bit_gray_is_scaled_not_clipped():
    wide = np.array([[0, 257, 32896, 65535]], np.uint16)
    np.testing.assert_array_equal(decode(stored(Image.fromarray(wide)))[..., 0], [[0, 1, 128, 255]])


def test_transparency_is_laid_on_white():
    pixels = np.zeros((1, 2, 4), np.uint8)
    pixels[0, 1, 3] = 255
    np.testing.assert_array_equal(decode(stored(Image.fromarray(pixels, "RGBA")))[0], [[255] * 3, [0] * 3])


def test_a_palette_colour_marked_transparent_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    np.testing.assert_array_equal(decode(stored(image, transparency=0))[0], [[255] * 3, [40, 50, 60]])


def test_the_first_frame_of_an_animation_counts():
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    found = decode(stored(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    np.testing.assert_array_equal(found, np.broadcast_to([255, 0, 0], (2, 3, 3)))


def test_cmyk_is_read_as_colour():
    found = decode(stored(Image.new("RGB", (8, 8), (200, 30, 30)).convert("CMYK"), "JPEG", quality=95))
    assert np.abs(found.astype(int) - [200, 30, 30]).max() < 12


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda x: x),
        (2, lambda x: x[:, ::-1]),
        (3, lambda x: x[::-1, ::-1]),
        (4, lambda x: x[::-1]),
        (5, lambda x: x.transpose(1, 0, 2)),
        (6, lambda x: np.rot90(x, -1)),
        (7, lambda x: x[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda x: np.rot90(x, 1)),
    ],
)
def test_the_camera_orientation_is_undone(orientation, upright):
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(decode(stored(Image.fromarray(RAMP), exif=exif)), upright(RAMP))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40))
def test_short_side(height, width, size):
    found = Resize(size).target(height, width)
    assert min(found) == size
    assert max(found) == int(size * max(height, width) / min(height, width))
    assert (found[0] <= found[1]) == (height <= width) or found[0] == found[1]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resize_is_pillows(interpolation):
    image = Image.fromarray(RAMP)
    expected = np.asarray(image.resize((3, 4), getattr(Image.Resampling, interpolation.upper())))
    np.testing.assert_array_equal(decode(stored(image), Resize((4, 3), interpolation)), expected)
    np.testing.assert_array_equal(decode(stored(image), Resize()), RAMP)


def test_a_missing_file_is_not_a_bad_image(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.png: cannot be read \(No such file") as caught:
        decode(tmp_path / "nowhere.png")
    assert not isinstance(caught.value, BadImageError)


def test_other_formats_are_refused():
    for kind in ("TIFF", "AVIF"):
        with pytest.raises(UnsupportedImageError, match=f"{kind} is not read; convert it to JPEG or PNG"):
            decode(stored(Image.fromarray(RAMP), kind))
    with pytest.raises(UnsupportedImageError, match="not a JPEG, PNG, WEBP, BMP or GIF image"):
        decode(stored(Image.fromarray(RAMP), "PPM"))
    with pytest.raises(BadImageError, match="not a JPEG"):
        decode(io.BytesIO(b""))


def test_a_truncated_file_is_named(tmp_path, picture):
    path = tmp_path / "half.jpg"
    picture(path, 64, 64)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(BadImageError, match=r"half\.jpg: corrupt or truncated"):
        decode(path)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FORMATS), st.data())
def test_damage_is_a_bad_image_or_no_harm(kind, data):
    content = bytearray(stored(Image.fromarray(np.tile(RAMP, (4, 4, 1))), kind).getvalue())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    try:
        found = decode(io.BytesIO(bytes(content[:cut])), Resize((4, 4)))
    except BadImageError:
        return
    assert found.shape == (4, 4, 3)
    assert found.dtype == np.uint8


def test_too_many_pixels_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)  # the ramp has 35: Pillow alone would only warn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BadImageError, match="too large"):
            decode(stored(Image.fromarray(RAMP)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(BadImageError, match="too large"):
        decode(stored(Image.fromarray(RAMP)))


def test_a_thin_strip_is_not_stretched_without_bounds():
    assert decode(stored(Image.new("L", (3000, 1))), Resize(256)).shape == (256, 1024, 3)
    with pytest.raises(BadImageError, match="too large"):
        decode(stored(Image.new("L", (3000, 1))), Resize((10, 10**7)))


def test_threads_that_decode_leave_the_warning_filters_alone():
    content = stored(Image.fromarray(RAMP)).getvalue()
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [decode(io.BytesIO(content)) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_images_select_and_relabel():
    pixels = ArrayPixels(np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1).repeat(3, -1), "tile")
    images = Images.of(pixels, [5, 3, 5, 9, 3, 5])
    assert images.counts == {3: 2, 5: 3, 9: 1}
    chosen = images.of_classes([9, 5])
    assert chosen.labels.tolist() == [5, 5, 9, 5]
    assert chosen.batch(np.arange(4))[0][:, 0, 0, 0].tolist() == [0, 2, 3, 5]
    assert chosen.relabel([9, 5]).labels.tolist() == [1, 1, 0, 1]
    again = chosen.select([3, 0])
    assert [again.name(0), again.name(1)] == ["tile 5", "tile 0"]
    assert images.select(images.labels == 3).rows.tolist() == [1, 4]
    with pytest.raises(ValueError, match="missing from the order"):
        images.relabel([3, 5])
    with pytest.raises(ValueError, match="6 images but 2 labels"):
        Images.of(pixels, [0, 1])


def test_names_of_arrays_where_they_have_names():
    assert ArrayPixels(np.zeros((2, 1, 1, 3), np.uint8), names=["a.png", "b.png"]).name(1) == "b.png"


def test_a_batch_of_different_sizes_is_padded(tmp_path, picture):
    first, second = picture(tmp_path / "a.png", 2, 5), picture(tmp_path / "b.png", 4, 3)
    images = Images.of(FilePixels(tmp_path, ["a.png", "b.png"]), [0, 1])
    padded, sizes = images.batch(np.array([1, 0]))
    assert padded.shape == (2, 4, 5, 3)
    assert sizes.tolist() == [[4, 3], [2, 5]]
    np.testing.assert_array_equal(padded[0, :4, :3], second)
    np.testing.assert_array_equal(padded[1, :2, :5], first)
    assert padded[0, :, 3:].max() == padded[1, 2:].max() == 0
    assert images.name(1) == "b.png"
    empty, none = images.batch(np.array([], np.int64))
    assert len(empty) == len(none) == 0


@pytest.fixture
def heic():
    """A photo as a phone takes it, 8 x 12, red above and blue below."""
    pytest.importorskip("pillow_heif", reason="the heic extra is not installed").register_heif_opener()
    pixels = np.zeros((12, 8, 3), np.uint8)
    pixels[:6, :, 0] = pixels[6:, :, 2] = 230
    return lambda **options: stored(Image.fromarray(pixels), "HEIF", quality=100, **options)


def colours(pixels):
    """The colour at the top and at the bottom, and at the left and at the right, as words."""
    places = (pixels[1, 4], pixels[-2, 4], pixels[4, 1], pixels[4, -2])
    return ["red" if red > 150 > blue else "blue" if blue > 150 > red else "other" for red, _, blue in places]


def test_heic_is_read(heic):
    assert decode(heic()).shape == (12, 8, 3)
    assert colours(decode(heic())) == ["red", "blue", "red", "red"]


def test_heic_is_turned_upright_once(heic):
    turned = Image.Exif()
    turned[0x0112] = 6  # turn right by a quarter
    pixels = decode(heic(exif=turned.tobytes()))
    assert pixels.shape == (8, 12, 3)
    assert colours(pixels)[2:] == ["blue", "red"]


def test_heic_under_another_name(heic, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(heic().getvalue())
    assert decode(tmp_path / "photo.jpg").shape == (12, 8, 3)


def test_a_torn_heic_is_a_bad_image(heic):
    with pytest.raises(BadImageError):
        decode(io.BytesIO(heic().getvalue()[:200]))


def test_heic_without_its_extra_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(20))
    with pytest.raises(BadImageError, match=r'a\.heic: .*pip install .*\[heic\]"$'):
        decode(tmp_path / "a.heic")
