"""One writer at a time, in one process or in several; a server keeps the writers of other processes out."""

import json
import os
import subprocess
import sys
import threading

import pytest

from fscil.errors import StoreError
from fscil.runtime import locks

# Holds what its argument names on a folder, says so, and waits for the end of its input.
HOLD = """
import sys
from pathlib import Path
from fscil.runtime import locks
with {}:
    print("held", flush=True)
    sys.stdin.read()
"""
HOLDERS = {
    "lock": "locks.locked(Path(sys.argv[1]) / locks.LOCK)",
    "writer": "locks.writing(Path(sys.argv[1]))",
    "server": "locks.serving(Path(sys.argv[1]))",
}
# Adds to a number in a file, which goes wrong as soon as two do it at once.
COUNT = """
import sys
from pathlib import Path
from fscil.runtime import locks
folder = Path(sys.argv[1])
for _ in range(50):
    with locks.writing(folder):
        (folder / "number").write_text(str(int((folder / "number").read_text()) + 1))
"""


@pytest.fixture
def hold(tmp_path):
    """hold("server") is another process that serves the folder."""
    processes = []

    def start(kind):
        command = [sys.executable, "-c", HOLD.format(HOLDERS[kind]), str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def is_free(path):
    with locks.locked(path, wait=False) as mine:
        return mine


def write(folder):
    with locks.writing(folder):
        pass


def serve(folder):
    with locks.serving(folder):
        pass


def nobody_writes(folder):
    with locks.no_writer(folder) as alone:
        return alone


# One lock


def test_a_lock_is_held_in_its_block(tmp_path):
    path = tmp_path / "lock"
    with locks.locked(path) as mine:
        assert mine
        assert not is_free(path)
    assert is_free(path)


def test_a_lock_of_another_process(tmp_path, hold):
    process = hold("lock")
    assert not is_free(tmp_path / locks.LOCK)
    process.communicate("")
    assert is_free(tmp_path / locks.LOCK)


def test_a_killed_process_leaves_no_lock(tmp_path, hold):
    for kind in HOLDERS:
        process = hold(kind)
        process.kill()
        process.wait()
        assert is_free(tmp_path / locks.LOCK)
        write(tmp_path)
        serve(tmp_path)


def test_an_exception_gives_the_lock_back(tmp_path):
    with pytest.raises(KeyError), locks.locked(tmp_path / "lock"):
        raise KeyError
    assert is_free(tmp_path / "lock")


def test_a_lock_that_cannot_be_made(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(StoreError, match="lock: cannot be written: "):
        is_free(tmp_path / "lock")


# Writers


def test_writers_of_several_processes_and_threads_wait_for_each_other(tmp_path):
    (tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    others = [subprocess.Popen(command) for _ in range(2)]

    def count():
        for _ in range(50):
            with locks.writing(tmp_path):
                (tmp_path / "number").write_text(str(int((tmp_path / "number").read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in others] == [0, 0]
    assert (tmp_path / "number").read_text() == "250"


def test_a_reader_knows_whether_somebody_writes(tmp_path, hold):
    assert nobody_writes(tmp_path)
    assert list(tmp_path.iterdir()) == []  # a reader makes no files
    process = hold("writer")
    assert not nobody_writes(tmp_path)
    process.communicate("")
    assert nobody_writes(tmp_path)


def test_while_a_reader_looks_nobody_writes(tmp_path):
    write(tmp_path)
    with locks.no_writer(tmp_path) as alone:
        assert alone
        assert not is_free(tmp_path / locks.LOCK)
    assert is_free(tmp_path / locks.LOCK)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is forbidden to this user")
def test_a_reader_without_the_right_to_write(tmp_path):
    write(tmp_path)
    (tmp_path / locks.LOCK).chmod(0o444)
    assert nobody_writes(tmp_path)


# A server


def test_a_server_keeps_others_out_and_says_who_it_is(tmp_path, hold):
    process = hold("server")
    for use in (write, write, serve, write):  # asking does not change the answer
        with pytest.raises(
            StoreError, match=rf"a server is using this model \(pid {process.pid}, since 20\d\d-.*stop it first\.$"
        ):
            use(tmp_path)
    assert nobody_writes(tmp_path)
    process.communicate("")
    write(tmp_path)
    assert not (tmp_path / locks.SERVER_INFO).exists()


def test_a_server_writes_itself(tmp_path):
    with locks.serving(tmp_path):
        write(tmp_path)
        with pytest.raises(StoreError, match="a server is using this model"):
            serve(tmp_path)
        write(tmp_path)
        assert json.loads((tmp_path / locks.SERVER_INFO).read_text())["pid"] == os.getpid()
    serve(tmp_path)


def test_a_server_that_left_no_word_of_itself(tmp_path, hold):
    hold("server")
    for content in ("", "{}", "[]", "null"):
        (tmp_path / locks.SERVER_INFO).write_text(content)
        with pytest.raises(StoreError, match=r"a server is using this model\. Do this through the server"):
            write(tmp_path)


def test_a_server_waits_for_the_writer_before_it(tmp_path, hold):
    process = hold("writer")
    served = threading.Event()

    def serve_once():
        with locks.serving(tmp_path):
            served.set()

    thread = threading.Thread(target=serve_once)
    thread.start()
    assert not served.is_set()
    process.communicate("")
    thread.join()
    assert served.is_set()
