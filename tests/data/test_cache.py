import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fscil.data import Dataset, Images, Resize, load, prepare
from fscil.data.cache import cache_folder
from fscil.data.images import ArrayPixels, FilePixels, decode
from fscil.errors import DataError, FscilWarning, StoreError

LONG_AGO = 1_500_000_000


@pytest.fixture
def source(tmp_path, picture):
    """Ten images of five sizes, six for training and four for testing, in an order of their own."""
    for number in range(10):
        picture(tmp_path / "source" / f"{number}.png", 5 + number % 5, 9, seed=number)
    pixels = FilePixels(tmp_path / "source", [f"{number}.png" for number in range(10)])
    images = Images.of(pixels, [0, 1] * 5)
    return Dataset(images.select([7, 1, 2, 9, 0, 3]), images.select([4, 8, 6, 5]), ("cat", "dog"), "pets")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def read(images):
    return [images.pixels.read(images.rows[place : place + 1])[0] for place in range(len(images))]


def same(prepared, dataset, resize):
    """Every image is what decoding its file gives."""
    for part in ("train", "test"):
        found, wanted = getattr(prepared, part), getattr(dataset, part)
        assert found.labels.tolist() == wanted.labels.tolist()
        for place, image in enumerate(read(found)):
            name = wanted.name(place)
            assert found.name(place) == name
            np.testing.assert_array_equal(image, decode(wanted.pixels.root / name, resize))


def spoil(path, content=b"not an image at all"):
    """Other content of the same length and time, which the cache cannot know of."""
    state = path.stat()
    path.write_bytes(content.ljust(state.st_size, b"\0")[: state.st_size])
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("resize", [Resize(), Resize(4), Resize((7, 6)), Resize((7, 6), "bicubic")])
def test_what_is_kept_is_what_decoding_gives(source, folder, resize):
    for _ in range(2):
        prepared = prepare(source, resize, folder, quiet=True)
        same(prepared, source, resize)
        assert prepared.train.pixels is prepared.test.pixels
        if isinstance(resize.size, tuple):
            assert prepared.train.batch(np.array([3, 0]))[0].shape == (2, 7, 6, 3)
            assert len(prepared.train.pixels) == 10
    assert len(list(folder.iterdir())) == 1


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12), st.data())
def test_batches_of_any_sizes(tmp_path_factory, sizes, data):
    root = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(len(sizes))
    arrays = [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(root / f"{number}.png")
    images = Images.of(FilePixels(root, [f"{number}.png" for number in range(len(sizes))]), [0] * len(sizes))
    dataset = Dataset(images, images.select([]), ("one",), "any", benchmark=True)  # long ones are kept whole
    prepared = prepare(dataset, Resize(), root / "cache", quiet=True)
    positions = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=20)))
    padded, found = prepared.train.batch(positions)
    assert found.tolist() == [list(sizes[position]) for position in positions]
    assert padded.shape[1:3] == tuple(found.max(axis=0))
    for canvas, position in zip(padded, positions, strict=True):
        height, width = sizes[position]
        np.testing.assert_array_equal(canvas[:height, :width], arrays[position])
        assert canvas[height:].sum() == canvas[:, width:].sum() == 0


def test_the_second_time_nothing_is_decoded(source, folder):
    first = [image.copy() for image in read(prepare(source, Resize(4), folder, quiet=True).train)]
    for path in source.train.pixels.root.iterdir():
        spoil(path)
    second = read(prepare(source, Resize(4), folder, quiet=True).train)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_choice_of_rows_finds_the_same_pixels(source, folder):
    prepare(source, Resize(4), folder, quiet=True)
    for path in source.train.pixels.root.iterdir():
        spoil(path)
    fewer = replace(source, train=source.train.select([4, 0, 4]), test=source.test.select([]))
    prepared = prepare(fewer, Resize(4), folder, quiet=True)
    assert [prepared.train.name(place) for place in range(3)] == ["0.png", "7.png", "0.png"]
    assert len(prepared.test) == 0


@pytest.mark.parametrize("change", ["content", "time", "paths"])
def test_a_changed_source_is_decoded_again_into_the_same_file(source, folder, picture, change):
    prepare(source, Resize(), folder, quiet=True)
    (kept,) = folder.iterdir()
    before = kept.read_bytes()
    root = source.train.pixels.root
    if change == "content":
        picture(root / "3.png", 3, 3, seed=99)
    elif change == "time":
        os.utime(root / "3.png", (LONG_AGO, LONG_AGO))
    else:
        pixels = FilePixels(root, source.train.pixels.paths[::-1])
        images = Images.of(pixels, [0] * 10)
        source = replace(source, train=images.select(range(6)), test=images.select(range(6, 10)))
    same(prepare(source, Resize(), folder, quiet=True), source, Resize())
    assert list(folder.iterdir()) == [kept]
    assert kept.read_bytes() != before


def test_other_settings_and_other_places_get_files_of_their_own(source, folder, tmp_path):
    for resize in (Resize(4), Resize(5), Resize((4, 4)), Resize((4, 4), "bicubic")):
        prepare(source, resize, folder, quiet=True)
    assert len(list(folder.iterdir())) == 4
    (tmp_path / "source").rename(tmp_path / "moved")
    pixels = FilePixels(tmp_path / "moved", source.train.pixels.paths)
    images = Images.of(pixels, [0] * 10)
    prepare(replace(source, train=images, test=images.select([])), Resize(4), folder, quiet=True)
    assert len(list(folder.iterdir())) == 5


def test_parts_with_stores_of_their_own(source, folder):
    root = source.train.pixels.root
    apart = replace(
        source,
        train=Images.of(FilePixels(root, ["3.png", "1.png"]), [0, 1]),
        test=Images.of(FilePixels(root, ["2.png"]), [1]),
    )
    for _ in range(2):
        same(prepare(apart, Resize(6), folder, quiet=True), apart, Resize(6))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content[:100] + content[101:],
        lambda content: content + b"\0",
        lambda content: b"X" + content[1:],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:-40] + b"\xff" * 40,
        lambda content: content[:-80] + b"9" + content[-79:],
    ],
)
def test_a_damaged_file_is_made_again(source, folder, damage):
    prepare(source, Resize(4), folder, quiet=True)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    same(prepare(source, Resize(4), folder, quiet=True), source, Resize(4))
    assert kept.read_bytes() == whole


def test_every_flipped_bit_of_a_pixel_is_noticed(source, folder):
    """Once, because then the file is made again."""
    prepare(source, Resize(4), folder, quiet=True)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    end = whole.index(b'{"key"')
    for place in np.linspace(16, end - 1, 20).astype(int):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        kept.write_bytes(damaged)
        prepared = prepare(source, Resize(4), folder, quiet=True)
        with pytest.raises(StoreError, match=r"pixels of \d\.png were damaged.*run the same command again"):
            read(replace(prepared.train, rows=np.arange(10), labels=np.zeros(10, int)))
        same(prepare(source, Resize(4), folder, quiet=True), source, Resize(4))
        assert kept.read_bytes() == whole


def test_of_a_long_image_the_central_part_is_kept(tmp_path, folder, picture):
    """So that a panorama and a tall screenshot do not make every batch as long and as high."""
    sizes = {"photo.png": (30, 40), "panorama.png": (9, 81), "tall.png": (190, 10), "strip.png": (1, 976)}
    for name, (height, width) in sizes.items():
        picture(tmp_path / name, height, width, seed=height)
    images = Images.of(FilePixels(tmp_path, list(sizes)), [0] * 4)
    dataset = Dataset(images, images.select([]), ("a",), "views")
    stretched = prepare(dataset, Resize(16), folder, quiet=True).train.batch(np.arange(4))[1]
    assert stretched.tolist() == [[16, 21], [16, 64], [64, 16], [16, 64]]
    native = prepare(dataset, Resize(), folder, quiet=True).train
    assert native.batch(np.arange(4))[1].tolist() == [[30, 40], [9, 37], [40, 10], [1, 4]]
    panorama = decode(tmp_path / "panorama.png")
    np.testing.assert_array_equal(native.batch(np.array([1]))[0][0], panorama[:, 22:59])
    published = prepare(replace(dataset, benchmark=True), Resize(), folder / "whole", quiet=True).train
    assert published.batch(np.arange(4))[1].tolist() == [list(size) for size in sizes.values()]


def break_image(path):
    path.write_bytes(path.read_bytes()[:-30])


def expected_without(dataset, part, bad):
    images = getattr(dataset, part)
    return images.select([place for place in range(len(images)) if images.name(place) not in bad])


@pytest.mark.parametrize("resize", [Resize(), Resize((4, 4))])
def test_bad_images_are_left_out_and_named(source, folder, resize):
    bad = {"9.png", "1.png", "8.png"}
    for name in bad:
        break_image(source.train.pixels.root / name)
    with pytest.warns(FscilWarning) as caught:
        prepared = prepare(source, resize, folder, quiet=True)
    train, test = (str(warning.message) for warning in caught)
    assert "2 of 6 train images cannot be decoded and are left out: 1.png, 9.png" in train
    assert "1 of 4 test images" in test
    assert "8.png: corrupt or truncated" in test
    assert "published" not in train
    remaining = {part: expected_without(source, part, bad) for part in ("train", "test")}
    same(prepared, replace(source, **remaining), resize)


def test_the_second_time_bad_images_are_known_without_decoding(source, folder):
    break_image(source.train.pixels.root / "2.png")
    with pytest.warns(FscilWarning, match="1 of 6 train images"):
        first = prepare(source, Resize((4, 4)), folder, quiet=True)
    for path in source.train.pixels.root.iterdir():
        spoil(path)
    with pytest.warns(FscilWarning, match=r"1 of 6 train images .*: 2\.png \(the first: .*2\.png: corrupt"):
        second = prepare(source, Resize((4, 4)), folder, quiet=True)
    np.testing.assert_array_equal(first.train.batch(np.arange(5))[0], second.train.batch(np.arange(5))[0])
    assert second.train.labels.tolist() == [1, 1, 1, 0, 1]


def test_a_benchmark_loses_its_published_draw_with_a_training_image(source, folder):
    break_image(source.train.pixels.root / "3.png")
    with pytest.warns(FscilWarning, match="few-shot samples drawn for dog are then not the published ones"):
        prepared = prepare(replace(source, benchmark=True), Resize(4), folder, quiet=True)
    assert len(prepared.train) == 5


def test_a_bad_test_image_stops_a_benchmark(source, folder):
    break_image(source.train.pixels.root / "3.png")
    break_image(source.train.pixels.root / "5.png")
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 of 4 test images cannot be decoded: 5\.png .*restore these files"):
            prepare(replace(source, benchmark=True), Resize(4), folder, quiet=True)


def test_a_repaired_image_is_decoded_again(source, folder, picture):
    break_image(source.train.pixels.root / "3.png")
    with pytest.warns(FscilWarning, match="1 of 6"):
        prepare(source, Resize(4), folder, quiet=True)
    picture(source.train.pixels.root / "3.png", seed=3)
    same(prepare(source, Resize(4), folder, quiet=True), source, Resize(4))


def test_heic_comes_back_when_its_extra_is_installed(source, folder, monkeypatch):
    heif = pytest.importorskip("pillow_heif", reason="the heic extra is not installed")
    heif.register_heif_opener()
    Image.new("RGB", (8, 6)).save(source.train.pixels.root / "1.png", "HEIF")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pillow_heif", None)
        with pytest.warns(FscilWarning, match=r"left out: 1\.png .*\[heic\]"):
            assert len(prepare(source, Resize(), folder, quiet=True).train) == 5
    assert len(prepare(source, Resize(), folder, quiet=True).train) == 6


def test_nothing_but_bad_images(source, folder):
    for path in source.train.pixels.root.iterdir():
        break_image(path)
    with pytest.raises(DataError, match="None of 10 images can be decoded"):
        prepare(source, Resize(4), folder, quiet=True)
    assert list(folder.iterdir()) == []


def test_a_file_that_is_gone_is_named(source, folder):
    (source.train.pixels.root / "6.png").unlink()
    with pytest.raises(DataError, match=r"pets: .*6\.png cannot be read \(No such file"):
        prepare(source, Resize(4), folder, quiet=True)


def test_arrays_of_the_right_size_stay_as_they_are(folder):
    images = Images.of(ArrayPixels(np.zeros((4, 6, 8, 3), np.uint8)), [0, 1, 0, 1])
    dataset = Dataset(images, images.select([]), ("a", "b"), "arrays")
    for resize in (Resize(), Resize(6), Resize((6, 8))):
        prepared = prepare(dataset, resize, folder)
        assert prepared.train.pixels is images.pixels
        np.testing.assert_array_equal(prepared.train.rows, images.rows)
    assert not folder.exists()


def test_arrays_of_another_size_are_resized_once(folder):
    array = np.random.default_rng(0).integers(0, 256, (5, 6, 8, 3), np.uint8)
    images = Images.of(ArrayPixels(array, "tile"), range(5))
    dataset = Dataset(images.select([3, 1]), images.select([4]), tuple("abcde"), "arrays")
    wanted = [np.asarray(Image.fromarray(image).resize((4, 3), Image.Resampling.BILINEAR)) for image in array]
    prepared = prepare(dataset, Resize(3), folder, quiet=True)
    np.testing.assert_array_equal(prepared.train.batch(np.arange(2))[0], [wanted[3], wanted[1]])
    assert prepared.train.name(0) == "tile 3"
    again = prepare(prepare(dataset, Resize(3), folder, quiet=True), Resize(), folder, quiet=True)
    np.testing.assert_array_equal(again.test.batch(np.arange(1))[0], [wanted[4]])
    changed = Images.of(ArrayPixels(255 - array), range(5))
    inverse = prepare(replace(dataset, train=changed, test=changed.select([])), Resize(3), folder, quiet=True)
    expected = np.asarray(Image.fromarray(255 - array[0]).resize((4, 3), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(inverse.train.batch(np.array([0]))[0][0], expected)


class Interrupted:
    """A store whose reader presses Ctrl-C in the middle of decoding, after a first look at all images."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 1000

    def read(self, rows):
        self.reads += 1
        if self.reads > 1000 and rows[0] == 500:
            raise KeyboardInterrupt
        return np.zeros((1, 8, 8, 3), np.uint8)

    def name(self, row):
        return str(row)


def test_an_interruption_leaves_nothing_half_done(folder):
    store = Interrupted()
    images = Images.of(store, [0] * 1000)
    with pytest.raises(KeyboardInterrupt):
        prepare(Dataset(images, images.select([]), ("a",), "slow"), Resize(4), folder, quiet=True)
    assert 1500 <= store.reads < 1900
    assert list(folder.iterdir()) == []


def test_leftovers_of_killed_runs_are_removed(source, folder):
    prepare(source, Resize(4), folder, quiet=True)
    (kept,) = folder.iterdir()
    old, young = (folder / f".{kept.name}.{name}.part" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (LONG_AGO, LONG_AGO))
    kept.unlink()
    prepare(source, Resize(4), folder, quiet=True)
    assert sorted(folder.iterdir()) == sorted([kept, young])


def test_a_cache_that_cannot_be_written_says_what_to_do(source, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot be written.*FSCIL_CACHE"):
        prepare(source, Resize(4), tmp_path / "file", quiet=True)


def test_pixels_are_never_all_in_memory(tmp_path, folder, picture):
    paths = [f"{number % 4}.png" for number in range(800)]
    for number in range(4):
        picture(tmp_path / f"{number}.png", 16, 16, seed=number)
    images = Images.of(FilePixels(tmp_path, paths), [0] * 800)
    dataset = Dataset(images, images.select([]), ("a",), "many")
    tracemalloc.start()
    prepare(dataset, Resize((128, 128)), folder, quiet=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (kept,) = folder.iterdir()
    assert kept.stat().st_size > 800 * 128 * 128 * 3
    assert peak < kept.stat().st_size / 3


def test_the_folder_is_chosen_by_the_environment(source, tmp_path, monkeypatch):
    monkeypatch.setenv("FSCIL_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    prepare(source, Resize(4), quiet=True)
    assert len(list((tmp_path / "chosen").iterdir())) == 1


WHERE = """
import sys
from fscil.data.cache import cache_folder
sys.platform = sys.argv[1]
print(cache_folder())
"""


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        ("linux", None, ".cache/fscil"),
        ("linux", ("XDG_CACHE_HOME", "elsewhere"), "elsewhere/fscil"),
        ("darwin", None, "Library/Caches/fscil"),
    ],
)
def test_where_each_system_keeps_it(tmp_path, platform, variable, place):
    inherited = {key: value for key, value in os.environ.items() if key not in ("FSCIL_CACHE", "XDG_CACHE_HOME")}
    environment = {**inherited, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    if variable:
        environment[variable[0]] = str(tmp_path / variable[1])
    command = [sys.executable, "-c", WHERE, platform]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.rstrip()) == tmp_path / place


def test_another_share_of_a_folder_decodes_nothing_again(tmp_path, picture, folder):
    root = tmp_path / "pets"
    for name in ("cat", "dog"):
        for number in range(5):
            picture(root / name / f"{number}.png", seed=number)
    prepare(load("folder", root), Resize((4, 4)), folder, quiet=True)
    for path in root.rglob("*.png"):
        spoil(path)
    prepared = prepare(load("folder", root, test_share=0.5, seed=3), Resize((4, 4)), folder, quiet=True)
    assert len(prepared.train) + len(prepared.test) == 10
    assert len(list(folder.iterdir())) == 1
