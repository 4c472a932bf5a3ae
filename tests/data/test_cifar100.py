import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
from typing import ClassVar

import numpy as np
import pytest

from fscil.data import cifar100, load
from fscil.errors import DataError


class Python2Pickler(pickle._Pickler):
    """Writes as Python 2 did, which made CIFAR-100: every string, even in a dtype, is a string of bytes."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content):
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)

    def save_str(self, content):
        self.save_bytes(content.encode())

    def save_global(self, what, name=None):
        if getattr(what, "__name__", "") == "_reconstruct":
            self.write(pickle.GLOBAL + b"numpy.core.multiarray\n_reconstruct\n")
        else:
            super().save_global(what, name)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_str
    dispatch[type(np.empty(0).__reduce__()[0])] = save_global


def python2(content):
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(content)
    return file.getvalue()


def tarball(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def part(count, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = [(7 * place + seed) % 100 for place in range(count)]
    planes = np.stack([np.concatenate([image[..., channel].ravel() for channel in range(3)]) for image in pixels])
    return pixels, labels, python2({b"data": planes, b"fine_labels": labels, b"filenames": [b"x.png"] * count})


@pytest.fixture
def small(monkeypatch):
    """A CIFAR-100 of a few images whose checksums count as the published ones."""
    parts = {"train": part(30, 1), "test": part(20, 2)}
    archive = tarball({name: content for name, (_, _, content) in parts.items()})
    publish(monkeypatch, archive, {name: content for name, (_, _, content) in parts.items()})
    return parts, archive


def publish(monkeypatch, archive, files):
    for name, content in {cifar100.ARCHIVE: archive, **files}.items():
        monkeypatch.setitem(cifar100.MD5, name, hashlib.md5(content).hexdigest())


def unpack(folder, parts):
    folder.mkdir(parents=True)
    for name, (_, _, content) in parts.items():
        (folder / name).write_bytes(content)
    return folder


def savez(path, parts, **changes):
    arrays = {f"{name}_x": pixels for name, (pixels, _, _) in parts.items()}
    arrays |= {f"{name}_y": np.array(labels) for name, (_, labels, _) in parts.items()}
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})


def check(dataset, parts):
    assert dataset.name == "cifar100"
    assert dataset.benchmark
    for name, (pixels, labels, _) in parts.items():
        images = getattr(dataset, name)
        assert images.labels.tolist() == labels
        np.testing.assert_array_equal(images.batch(np.arange(len(images)))[0], pixels)


def test_the_archive_the_folder_and_the_npz_give_the_same(small, tmp_path):
    parts, archive = small
    (tmp_path / "tar").mkdir()
    (tmp_path / "tar" / "cifar-100-python.tar.gz").write_bytes(archive)
    unpack(tmp_path / "folder" / "cifar-100-python", parts)
    (tmp_path / "npz").mkdir()
    savez(tmp_path / "npz" / "cifar100.npz", parts)
    for root in (
        "tar",
        "tar/cifar-100-python.tar.gz",
        "folder",
        "folder/cifar-100-python",
        "npz",
        "npz/cifar100.npz",
    ):
        check(load("cifar100", tmp_path / root), parts)


def test_class_names_are_the_hundred_fine_labels(small, tmp_path):
    names = load("cifar100", unpack(tmp_path / "cifar-100-python", small[0])).class_names
    assert len(set(names)) == 100
    assert list(names) == sorted(names)
    assert (names[0], names[60], names[99]) == ("apple", "plain", "worm")


class Marker:
    """Unpickling runs open(path, "w")."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_a_wrong_checksum_is_refused_before_anything_is_unpickled(small, tmp_path, form):
    evil = {name: pickle.dumps(Marker(tmp_path / "pwned"), 2) for name in ("train", "test")}
    if form == "archive":
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(tarball(evil))
    else:
        unpack(tmp_path / "cifar-100-python", {name: (None, None, content) for name, content in evil.items()})
    with pytest.raises(DataError, match=r"the checksum of .* is \w{32}, published is \w{32}.*--download"):
        load("cifar100", tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_a_malicious_pickle_is_refused_even_with_the_right_checksum(small, tmp_path, monkeypatch, form):
    files = {"train": python2({b"data": Marker(tmp_path / "pwned")}), "test": small[0]["test"][2]}
    archive = tarball(files)
    publish(monkeypatch, archive, files)
    if form == "archive":
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(archive)
    else:
        unpack(tmp_path / "cifar-100-python", {name: (None, None, content) for name, content in files.items()})
    with pytest.raises(DataError, match=r"it asks for \w+\.open"):
        load("cifar100", tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "wanted",
    [
        b"cos\nsystem\n",
        b"cbuiltins\neval\n",
        b"cnumpy\nload\n",
        b"cnumpy.core.multiarray\nscalar\n",
        b"c_codecs\nencode\n",
    ],
)
def test_only_what_arrays_are_made_of_is_admitted(small, tmp_path, monkeypatch, wanted):
    files = {"train": b"\x80\x02" + wanted + b".", "test": small[0]["test"][2]}
    publish(monkeypatch, b"", files)
    root = unpack(tmp_path / "cifar-100-python", {name: (None, None, content) for name, content in files.items()})
    with pytest.raises(DataError, match="it asks for"):
        load("cifar100", root)


@pytest.mark.parametrize("content", [b"", b"junk", python2([1, 2]), python2({b"data": b"x", b"fine_labels": []})])
def test_a_strange_pickle_is_an_error(small, tmp_path, monkeypatch, content):
    files = {"train": content, "test": small[0]["test"][2]}
    publish(monkeypatch, b"", files)
    root = unpack(tmp_path / "cifar-100-python", {name: (None, None, content) for name, content in files.items()})
    with pytest.raises(DataError, match="does not hold what CIFAR-100 does"):
        load("cifar100", root)


def test_a_half_copied_folder_names_the_missing_file(small, tmp_path):
    root = unpack(tmp_path / "cifar-100-python", small[0])
    (root / "test").unlink()
    with pytest.raises(DataError, match=r"cifar-100-python/test: cannot be read \(No such file.*--download"):
        load("cifar100", tmp_path)


def test_nothing_there_says_what_is_expected_and_how_to_get_it(tmp_path):
    with pytest.raises(DataError) as caught:
        load("cifar100", tmp_path)
    for words in ("cifar-100-python.tar.gz", "cifar100.npz", f"fscil data cifar100 --root {tmp_path} --download"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_y": None}, "test_y.*Expected are train_x, train_y, test_x and test_y"),
        ({"train_x": np.zeros((30, 3, 32, 32), np.uint8)}, r"must be uint8 \(n, 32, 32, 3\), found uint8 \(30, 3"),
        ({"train_x": np.zeros((30, 32, 32, 3), np.float32)}, "found float32"),
        ({"train_y": np.zeros(29, np.int64)}, r"labels must be whole numbers \(30,\), found int64 \(29,\)"),
        ({"train_y": np.zeros(30)}, "found float64"),
        ({"test_y": np.full(20, 100)}, "0 to 99, found 100 to 100"),
        ({"test_y": np.full(20, -1)}, "0 to 99, found -1"),
        ({"test_y": np.array([Marker("x")] * 20, object)}, "not a whole npz file of plain arrays"),
    ],
)
def test_an_npz_that_is_not_cifar100_is_refused(small, tmp_path, changes, message):
    savez(tmp_path / "cifar100.npz", small[0], **changes)
    with pytest.raises(DataError, match=message):
        load("cifar100", tmp_path)


def test_a_torn_npz_is_refused(small, tmp_path):
    path = tmp_path / "cifar100.npz"
    savez(path, small[0])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="not a whole npz file"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"), [(b"}", b"(", "not a whole npz file"), (b"NUMPY", b"OTHER", r"found \|S")]
)
def test_an_npz_whose_arrays_have_a_damaged_header_is_refused(small, tmp_path, old, new, message):
    path = tmp_path / "cifar100.npz"
    savez(path, small[0])
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        load("cifar100", tmp_path)
