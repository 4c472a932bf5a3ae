"""Pipes, devices, sockets, folders and links in the place of a file: an error at once, and nothing changed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fscil.data.images import decode
from fscil.errors import DataError, StoreError
from fscil.runtime import files, locks
from fscil.runtime.regular_files import open_regular, read_regular, remove_stale
from fscil.training.run_folder import Run
from helpers import small_config

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such files")

LONG_AGO = 1_500_000_000
CLAIM = """
import sys
from pathlib import Path
from fscil.runtime.files import replacing
with replacing(Path(sys.argv[1])):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def make(kind, path):
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            here = Path.cwd()
            os.chdir(path.parent)  # the path of a socket must be short
            try:
                socket.socket(socket.AF_UNIX).bind(path.name)
            finally:
                os.chdir(here)


KINDS = ["pipe", "folder", "device", "socket"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_photo(tmp_path, kind):
    make(kind, tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"a\.jpg: cannot be read"):
        decode(tmp_path / "a.jpg")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "read",
    [files.read_json, files.read_checked_json, files.load_tensors, files.read_json_lines],
    ids=lambda function: function.__name__,
)
def test_nothing_to_read(tmp_path, kind, read):
    make(kind, tmp_path / "file")
    with pytest.raises(StoreError, match="file: "):
        read(tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_append_to(tmp_path, kind):
    make(kind, tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be written"):
        files.append_json_line(tmp_path / "file", {"step": 1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.json", "config.toml", "metrics.jsonl"])
def test_no_file_of_a_run(tmp_path, kind, name):
    run = Run.create(tmp_path / "run", small_config(), {})
    (run.folder / name).unlink(missing_ok=True)
    make(kind, run.folder / name)
    with pytest.raises(StoreError):
        (Run.open(run.folder).metrics if name == "metrics.jsonl" else run.about if name == "run.json" else run.config)()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_no_lock(tmp_path, kind):
    make(kind, tmp_path / ".lock")
    with pytest.raises(StoreError, match="cannot be written"), locks.locked(tmp_path / ".lock", wait=False):
        pass


@pytest.fixture
def link(tmp_path):
    """A link to a file that is somebody's, and a check that this stays as it is."""
    (tmp_path / "mine.txt").write_text("precious")
    path = tmp_path / "run" / "link"
    path.parent.mkdir()
    path.symlink_to(tmp_path / "mine.txt")
    yield path
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_lock_is_not_made_through_a_link(link):
    with pytest.raises(StoreError, match="is a symbolic link"), locks.locked(link):
        pass
    dangling = link.with_name("dangling")
    dangling.symlink_to(link.parent / "new")
    with pytest.raises(StoreError, match="is a symbolic link"), locks.locked(dangling):
        pass
    assert not (link.parent / "new").exists()


def test_a_lock_keeps_what_is_in_its_file(tmp_path):
    (tmp_path / ".lock").write_text("notes")
    with locks.locked(tmp_path / ".lock"), locks.locked(tmp_path / ".lock", wait=False) as second:
        assert not second
    assert (tmp_path / ".lock").read_text() == "notes"


def test_a_second_name_of_a_file_is_not_emptied(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / ".lock").hardlink_to(tmp_path / "mine.txt")
    with locks.locked(tmp_path / ".lock"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_link_is_not_appended_to(link):
    with pytest.raises(StoreError, match="is a symbolic link"):
        files.append_json_line(link, {"step": 1})


def test_a_link_is_replaced_not_what_it_points_to(link):
    files.write_text(link, "new")
    assert not link.is_symlink()


def test_photos_may_be_links(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "b", 100) == b"content"
    with pytest.raises(OSError, match="is a symbolic link"):
        read_regular(tmp_path / "b", 100, follow_links=False)


def test_a_file_has_at_most_so_many_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 101)
    assert read_regular(tmp_path / "a", 101) == b"x" * 101
    with pytest.raises(OSError, match="larger than"):
        open_regular(tmp_path / "a", 100)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="has no /proc")
def test_a_file_that_says_it_is_empty():
    assert len(read_regular(Path("/proc/self/maps"), 2**24)) > 1000
    with pytest.raises(OSError, match="larger than"):
        read_regular(Path("/proc/self/maps"), 100)


def test_temporary_files_of_the_killed_are_removed_those_of_the_living_are_not(tmp_path):
    path = tmp_path / "results.json"
    command = [sys.executable, "-c", CLAIM, path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "claimed\n"
        (part,) = tmp_path.glob(".*.part")
        os.utime(part, (LONG_AGO, LONG_AGO))
        files.write_text(path, "by another one")
        assert part.exists()
    finally:
        process.kill()
        process.communicate()
    files.write_text(path, "by another one")
    assert os.listdir(tmp_path) == ["results.json"]  # noqa: PTH208


def test_only_what_is_asked_for_is_removed(tmp_path):
    for name in (".a.1.part", "notes.part", ".b.1.part"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    remove_stale(tmp_path, ".a.*.part")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.1.part", "notes.part"]
