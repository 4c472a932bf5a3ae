import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from fscil.data import cifar100, cub200, download, load
from fscil.data.download import SOURCES, Source
from fscil.data.download import download as fetch
from fscil.errors import DataError, StoreError


class Server(ThreadingHTTPServer):
    """A server of one file. cuts: after how many bytes the next answers break off."""

    def __init__(self, content, ranges=True, cuts=(), status=None, length=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cuts, self.status, self.length = content, ranges, list(cuts), status, length
        self.asked = []  # the Range header of each request
        self.agents = []
        self.stalls = False
        self.over = threading.Event()

    def url(self, name):
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        home = self.server
        wanted = self.headers.get("Range")
        home.asked.append(wanted)
        home.agents.append(self.headers.get("User-Agent"))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and home.ranges else 0
        if home.status or (start and start >= len(home.content)):
            self.send_error(home.status or 416)
            return
        body = home.content[start:]
        self.send_response(206 if wanted and home.ranges else 200)
        if wanted and home.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(home.content) - 1}/{len(home.content)}")
        if home.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: home.cuts.pop(0)] if home.cuts else body)
        if home.stalls:
            self.wfile.flush()
            home.over.wait(30)

    def log_message(self, *words):
        pass


@pytest.fixture
def serve():
    """serve(content, …) starts a Server and stops it after the test."""
    started = []

    def start(content, **options):
        home = Server(content, **options)
        thread = threading.Thread(target=home.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((home, thread))
        return home

    yield start
    for home, thread in started:
        home.over.set()
        home.shutdown()
        thread.join()
        home.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def publish(monkeypatch, name, home, content, file):
    md5 = hashlib.md5(content).hexdigest()
    monkeypatch.setitem(SOURCES, name, Source(home.url(file), md5))


CONTENT = np.random.default_rng(0).bytes(1_000_000)
FILE = "cifar-100-python.tar.gz"


@pytest.fixture
def cifar(serve, monkeypatch, tmp_path):
    """cifar(…) serves a million bytes as CIFAR-100's archive."""

    def start(content=CONTENT, **options):
        home = serve(content, **options)
        publish(monkeypatch, "cifar100", home, CONTENT, FILE)
        return home

    return start


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_archive_arrives(cifar, tmp_path):
    home = cifar()
    fetch("cifar100", tmp_path / "new" / "folder", quiet=True)
    assert files(tmp_path / "new" / "folder") == [FILE]
    assert (tmp_path / "new" / "folder" / FILE).read_bytes() == CONTENT
    assert home.asked == [None]
    assert home.agents[0].startswith("fscil/")


def test_an_archive_that_is_there_is_not_fetched_again(cifar, tmp_path):
    home = cifar()
    (tmp_path / FILE).write_bytes(CONTENT)
    fetch("cifar100", tmp_path, quiet=True)
    assert home.asked == []


def test_a_wrong_archive_is_fetched_again(cifar, tmp_path):
    cifar()
    (tmp_path / FILE).write_bytes(CONTENT[:-1])
    fetch("cifar100", tmp_path, quiet=True)
    assert (tmp_path / FILE).read_bytes() == CONTENT


def test_a_cut_connection_is_continued(cifar, tmp_path):
    home = cifar(cuts=[400_000, 300_000])
    for done in (400_000, 700_000):
        with pytest.raises(DataError, match=f"ended after {done} of 1000000 bytes.*again to continue"):
            fetch("cifar100", tmp_path, quiet=True)
        assert (tmp_path / f"{FILE}.part").read_bytes() == CONTENT[:done]
        assert files(tmp_path) == [f"{FILE}.part"]
    fetch("cifar100", tmp_path, quiet=True)
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert files(tmp_path) == [FILE]
    assert home.asked == [None, "bytes=400000-", "bytes=700000-"]


def test_a_server_without_ranges_starts_from_the_beginning(cifar, tmp_path):
    home = cifar(ranges=False, cuts=[400_000])
    with pytest.raises(DataError, match="again to continue"):
        fetch("cifar100", tmp_path, quiet=True)
    fetch("cifar100", tmp_path, quiet=True)
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert home.asked == [None, "bytes=400000-"]


def test_a_part_that_is_whole_only_needs_its_checksum(cifar, tmp_path):
    home = cifar()
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT)
    fetch("cifar100", tmp_path, quiet=True)
    assert home.asked == ["bytes=1000000-"]
    assert files(tmp_path) == [FILE]


def test_a_server_that_does_not_tell_the_length(cifar, tmp_path):
    cifar(length=False)
    fetch("cifar100", tmp_path, quiet=True)
    assert (tmp_path / FILE).read_bytes() == CONTENT


@pytest.mark.parametrize("before", [b"", b"of another file", b"x" * 2_000_000])
def test_a_wrong_checksum_removes_what_arrived_and_says_so(cifar, tmp_path, before):
    cifar(content=CONTENT if before else CONTENT[::-1])
    if before:
        (tmp_path / f"{FILE}.part").write_bytes(before)
    with pytest.raises(
        DataError, match=r"checksum \w{32}, published is \w{32}\. It was deleted.*start from the beginning"
    ):
        fetch("cifar100", tmp_path, quiet=True)
    assert files(tmp_path) == []


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_is_reported_with_advice(cifar, tmp_path, status):
    cifar(status=status)
    with pytest.raises(DataError, match=rf"http://127.*{status}.*again to continue.*put {FILE} into"):
        fetch("cifar100", tmp_path, quiet=True)


def test_no_server_is_reported_with_advice(monkeypatch, tmp_path):
    home = Server(b"")
    publish(monkeypatch, "cifar100", home, CONTENT, FILE)
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT[:1000])
    home.server_close()
    with pytest.raises(DataError, match=r"refused.*again to continue"):
        fetch("cifar100", tmp_path, quiet=True)
    assert (tmp_path / f"{FILE}.part").read_bytes() == CONTENT[:1000]


def test_a_silent_server_is_given_up(cifar, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    cifar(cuts=[300_000]).stalls = True
    with pytest.raises(DataError, match=r"timed out.*again to continue"):
        fetch("cifar100", tmp_path, quiet=True)
    assert CONTENT.startswith((tmp_path / f"{FILE}.part").read_bytes())


def test_a_folder_that_cannot_be_made(cifar, tmp_path):
    cifar()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file cannot be written"):
        fetch("cifar100", tmp_path / "file", quiet=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mini_imagenet", "no official download.*train.csv"),
        ("folder", "your own images"),
        ("glyphs", "comes with fscil"),
        ("cifar10", 'Did you mean "cifar100"'),
    ],
)
def test_what_cannot_be_downloaded_says_why(tmp_path, name, message):
    with pytest.raises(DataError, match=message):
        fetch(name, tmp_path)


def test_the_sources_are_the_published_ones():
    assert SOURCES["cifar100"].md5 == cifar100.MD5[cifar100.ARCHIVE]
    assert all(source.url.startswith("https://") for source in SOURCES.values())
    assert download.SOURCES["cub200"].url.endswith("CUB_200_2011.tgz")


def png(seed):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


BIRDS = {
    "attributes.txt": b"1 x\n",
    "CUB_200_2011/images.txt": b"1 001.A_Bird/a.jpg\n2 001.A_Bird/b.jpg\n",
    "CUB_200_2011/image_class_labels.txt": b"1 1\n2 1\n",
    "CUB_200_2011/train_test_split.txt": b"1 1\n2 0\n",
    "CUB_200_2011/images/001.A_Bird/a.jpg": png(1),
    "CUB_200_2011/images/001.A_Bird/b.jpg": png(2),
}


def tarball(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def cub(serve, monkeypatch):
    def start(files=BIRDS, **options):
        content = tarball(files)
        home = serve(content, **options)
        publish(monkeypatch, "cub200", home, content, "CUB_200_2011.tgz")
        return home, content

    return start


@pytest.mark.parametrize("inside", ["", "CUB_200_2011"])
def test_birds_are_unpacked_and_the_archive_goes(cub, tmp_path, inside):
    cub()
    root = tmp_path / "birds"
    fetch("cub200", root / inside, quiet=True)
    assert files(root) == ["CUB_200_2011"]
    dataset = load("cub200", root / inside)
    assert (len(dataset.train), len(dataset.test), dataset.class_names) == (1, 1, ("A Bird",))


def test_complete_birds_are_not_fetched_again(cub, tmp_path):
    home, _ = cub()
    for _ in range(2):
        fetch("cub200", tmp_path, quiet=True)
    assert len(home.asked) == 1


@pytest.mark.parametrize("inside", ["", "CUB_200_2011"])
def test_missing_birds_come_back_and_other_files_stay(cub, tmp_path, inside):
    cub()
    fetch("cub200", tmp_path, quiet=True)
    folder = tmp_path / "CUB_200_2011"
    (folder / "images" / "001.A_Bird" / "b.jpg").unlink()
    (folder / "notes.txt").write_text("mine")
    fetch("cub200", tmp_path / inside, quiet=True)
    assert len(load("cub200", tmp_path).test) == 1
    assert (folder / "notes.txt").read_text() == "mine"
    assert files(tmp_path) == ["CUB_200_2011"]


def test_an_archive_fetched_by_hand_is_unpacked(cub, tmp_path):
    home, content = cub()
    (tmp_path / "CUB_200_2011.tgz").write_bytes(content)
    fetch("cub200", tmp_path, quiet=True)
    assert home.asked == []
    assert len(load("cub200", tmp_path).train) == 1


@pytest.mark.parametrize("name", ["../outside.txt", "CUB_200_2011/../../outside.txt"])
def test_an_archive_that_reaches_outside_is_refused(cub, tmp_path, name):
    cub({**BIRDS, name: b"x"})
    root = tmp_path / "deep" / "birds"
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch("cub200", root, quiet=True)
    assert not list(tmp_path.rglob("outside.txt"))
    assert files(root) == ["CUB_200_2011.tgz"]


def test_something_in_the_way_of_the_birds_loses_nothing(cub, tmp_path):
    cub()
    (tmp_path / cub200.FOLDER / "images" / "001.A_Bird" / "a.jpg").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be written"):
        fetch("cub200", tmp_path, quiet=True)
    assert files(tmp_path) == ["CUB_200_2011", "CUB_200_2011.tgz"]
