"""Kept photos on disk: bounded, each once, oldest dropped; forgotten without a trace; nothing followed or damaged."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fscil.classifier.inbox import Inbox
from fscil.errors import FscilWarning, StoreError
from fscil.gallery import Photo


def photo(number, thumbnail=100):
    feature = torch.full((4,), float(number))
    return Photo(f"{number:064x}", feature, f"{number}.jpg", "2026-01-01T00:00:00+00:00", bytes([number]) * thumbnail)


def digests(inbox):
    return [int(each.digest, 16) for each in inbox.photos()]


def traces(model):
    """Numbers of the photos whose digest is in any file, whatever it is called."""
    content = b"".join(path.read_bytes() for path in model.rglob("*") if path.is_file())
    return [number for number in range(256) if photo(number).digest.encode() in content]


def files(model):
    return sorted(path.name for path in model.rglob("*") if path.is_file())


class Life(RuleBasedStateMachine):
    """Beside a plain list, whatever is kept, forgotten and opened again."""

    @initialize(at_most=st.integers(0, 6), room=st.integers(0, 3000))
    def begin(self, at_most, room):
        self.place = tempfile.TemporaryDirectory()
        self.model, self.limits = Path(self.place.name), (at_most, room)
        self.inbox, self.plain = Inbox(self.model, "net", *self.limits), []

    @rule(numbers=st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0, 200, 700])), max_size=4))
    def keep(self, numbers):
        for number, thumbnail in numbers:
            known = self.inbox.photos()
            if self.inbox.add([photo(number, thumbnail)]):
                assert number not in [int(each.digest, 16) for each in known]
                self.plain.append(number)
        dropped = len(self.plain) - len(self.inbox)
        self.plain = self.plain[dropped:]

    @rule(numbers=st.lists(st.integers(1, 12), max_size=3))
    def forget(self, numbers):
        assert self.inbox.remove(photo(number).digest for number in numbers) == len({*numbers} & {*self.plain})
        self.plain = [number for number in self.plain if number not in numbers]

    @rule()
    def clear(self):
        assert self.inbox.clear() == len(self.plain)
        self.plain = []
        assert files(self.model) == []

    @rule()
    def open_again(self):
        self.inbox = Inbox(self.model, "net", *self.limits)
        self.inbox.settle()

    @invariant()
    def bounded_and_the_same_on_disk(self):
        if not hasattr(self, "inbox"):
            return
        at_most, room = self.limits
        assert digests(self.inbox) == self.plain
        assert traces(self.model) == sorted(self.plain)
        assert len(files(self.model)) == len(self.plain) <= at_most
        size = sum(path.stat().st_size for path in self.model.rglob("*") if path.is_file())
        assert size == self.inbox.bytes <= room

    def teardown(self):
        if hasattr(self, "place"):
            self.place.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=30, stateful_step_count=15, deadline=None, derandomize=True)


def test_the_oldest_go_first(tmp_path):
    inbox = Inbox(tmp_path, "net", at_most=3)
    assert inbox.add([photo(1), photo(2), photo(1)]) == 2
    assert inbox.add([photo(3), photo(2), photo(4)]) == 2
    assert digests(inbox) == [2, 3, 4]
    again = Inbox(tmp_path, "net", at_most=2)
    again.settle(enrolled=[photo(3).digest])
    assert digests(again) == [2, 4]
    assert again.get(photo(4).digest).thumbnail == photo(4).thumbnail
    assert again.get(photo(3).digest) is None
    again.add([photo(5)])
    assert digests(again) == [4, 5]
    assert traces(tmp_path) == [4, 5]
    assert inbox.folder.stat().st_mode & 0o077 == 0


def test_another_network_unfinished_and_damaged_files(tmp_path):
    old = Inbox(tmp_path, "old")
    old.add([photo(1), photo(2)])
    inbox = Inbox(tmp_path, "net")
    assert digests(inbox) == []
    inbox.add([photo(3), photo(4), photo(5)])
    (inbox.folder / ".000000000009.json.abc.part").write_bytes(photo(6).digest.encode())
    (inbox.folder / "notes.txt").write_text("of somebody else")
    damaged = inbox.folder / "000000000003.json"
    damaged.write_bytes(damaged.read_bytes().replace(b"3.jpg", b"4.jpg"))
    with pytest.warns(FscilWarning, match="left out"):
        again = Inbox(tmp_path, "net")
    assert digests(again) == [4, 5]
    assert traces(tmp_path) == [1, 2, 3, 4, 5, 6], "reading changes nothing"
    again.settle()
    assert traces(tmp_path) == [4, 5]
    again.clear()
    assert files(tmp_path) == ["notes.txt"]


def test_links_and_special_files_are_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    other = Inbox(elsewhere / "", "net")
    elsewhere.mkdir()
    other.add([photo(1)])
    model = tmp_path / "model"
    model.mkdir()
    (model / "review").symlink_to(other.folder)
    with pytest.raises(StoreError, match="link or no folder"):
        Inbox(model, "net")
    (model / "review").unlink()
    inbox = Inbox(model, "net")
    inbox.add([photo(2)])
    (inbox.folder / "000000000005.json").symlink_to(other.folder / "000000000001.json")
    os.mkfifo(inbox.folder / "000000000006.json")
    with pytest.warns(FscilWarning, match="symbolic link|regular file"):
        again = Inbox(model, "net")
    assert digests(again) == [2]
    again.add([photo(7)])
    again.clear()
    assert not again.folder.exists()
    assert traces(other.folder) == [1]


def test_what_cannot_be_removed_is_not_said_to_be(tmp_path, monkeypatch):
    inbox = Inbox(tmp_path, "net")
    inbox.add([photo(1)])

    def refused(path, missing_ok=False):
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        for forget in (lambda: inbox.remove([photo(1).digest]), inbox.clear):
            with pytest.raises(StoreError, match="cannot be removed"):
                forget()
    assert digests(inbox) == [1]
    inbox.clear()
    assert traces(tmp_path) == []


# Keeps and forgets photos until it dies, before a step on the disk.
KILLED = """
import io, os, signal, sys
from pathlib import Path
import torch
from fscil.classifier.inbox import Inbox
from fscil.gallery import Photo

def photo(number):
    return Photo(f"{number:064x}", torch.full((4,), float(number)), f"{number}.jpg", "2026", bytes([number]) * 100)

def dying(step, left):
    def wrapper(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args, **kwargs)
    return wrapper

for number in range(200):
    child = os.fork()
    if not child:
        model = Path(sys.argv[1]) / str(number)
        model.mkdir()
        inbox, left = Inbox(model, "net", at_most=2), [number]
        for module, name in ((os, "open"), (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "mkdir")):
            setattr(module, name, dying(getattr(module, name), left))
        inbox.add([photo(1), photo(2), photo(3)])
        inbox.remove([photo(2).digest])
        inbox.clear()
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(number)
        break
"""


def test_killed_before_every_step(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, check=True)
    steps = int(done.stdout)
    assert steps > 12
    seen = set()
    for number in range(steps):
        model = tmp_path / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            inbox = Inbox(model, "net", at_most=2)
        inbox.settle()
        seen.add(tuple(digests(inbox)))
        assert traces(model) == sorted(digests(inbox))
        inbox.add([photo(9)])
        inbox.clear()
        assert files(model) == []
    assert seen >= {(), (1,), (1, 2), (2,), (2, 3), (3,)}


def test_a_file_is_plain_json(tmp_path):
    inbox = Inbox(tmp_path, "net")
    inbox.add([photo(1)])
    (path,) = inbox.folder.iterdir()
    content = json.loads(path.read_text())
    assert content["photo"]["digest"] == photo(1).digest
    assert set(content) == {"network", "photo", "checksum"}
