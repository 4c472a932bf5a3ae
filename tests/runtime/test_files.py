"""Files are replaced atomically, and damage is detected."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscil.errors import FscilWarning, StoreError
from fscil.runtime import files as store

TENSORS = {
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "empty": torch.empty(0, 4),
}
ABOUT = {"step": 12, "name": "dög"}


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name]) for name in expected
    )


# Replacing a file


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    store.write_text(path, "first")
    store.write_text(path, "sécond")
    assert path.read_text(encoding="utf-8") == "sécond"
    assert listing(path.parent) == ["file.txt"]


def test_until_the_block_ends_the_old_content_stands(tmp_path):
    path = tmp_path / "file.txt"
    store.write_text(path, "old")
    with store.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError("half way"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_leaves_the_old_file_and_no_other(tmp_path, error):
    path = tmp_path / "file.txt"
    store.write_text(path, "old")

    def half_way():
        with store.replacing(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        half_way()
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file.txt"]


def test_a_file_is_as_readable_as_the_umask_wants(tmp_path):
    before = os.umask(0o027)
    try:
        store.write_text(tmp_path / "file.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640
    assert os.umask(before) == before


def test_a_name_that_is_no_unicode_can_be_written(tmp_path):
    name = os.fsdecode(b"caf\xe9")  # a folder name in Latin-1
    store.write_text(tmp_path / "table.csv", f"{name},1")
    assert (tmp_path / "table.csv").read_bytes() == b"caf\\udce9,1"


# No space, no permission


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_costs_nothing(tmp_path, monkeypatch, number):
    path = tmp_path / "weights.safetensors"
    store.save_tensors(path, TENSORS, ABOUT)

    def full(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"weights\.safetensors: cannot be written: no space left .* Free some"):
        store.save_tensors(path, {"weight": torch.zeros(3)}, {})
    monkeypatch.undo()
    assert same(store.load_tensors(path)[0], TENSORS)
    assert listing(tmp_path) == ["weights.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_line_is_added_to_a_file_only():
    with pytest.raises(StoreError, match=r"/dev/full: cannot be written: not a regular file"):
        store.append_json_line(Path("/dev/full"), {"step": 1})


def test_a_write_that_the_system_cuts_short(tmp_path):
    """A real refusal in the middle of a file: the process may write no more than 4096 bytes to one."""
    path = tmp_path / "big.txt"
    store.write_text(path, "old")
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from fscil.errors import StoreError\n"
        "from fscil.runtime.files import write_text\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    write_text(Path(sys.argv[1]), 'x' * 100000)\n"
        "except StoreError as error:\n"
        "    print(error)\n"
        "    sys.exit(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert done.stdout.startswith(f"{path}: cannot be written: ")
    assert os.strerror(errno.EFBIG) in done.stdout
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["big.txt"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        store.write_text(tmp_path / "file" / "inside.txt", "text")


# Tensors


def test_tensors_come_back_as_they_went(tmp_path):
    store.save_tensors(tmp_path / "a.safetensors", TENSORS, ABOUT)
    found, about = store.load_tensors(tmp_path / "a.safetensors")
    assert same(found, TENSORS)
    assert about == ABOUT


def test_the_same_tensors_give_the_same_bytes():
    tensors = {"a": torch.arange(3), "b": torch.ones(2, 2)}
    assert len({store.pack_tensors(tensors, {"é": 1}) for _ in range(20)}) == 1


def test_memory_layout_does_not_matter(tmp_path):
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    store.save_tensors(tmp_path / "a.safetensors", {"image": image, "turned": image.permute(3, 0, 1, 2)})
    found, about = store.load_tensors(tmp_path / "a.safetensors")
    assert torch.equal(found["image"], image)
    assert torch.equal(found["turned"], image.permute(3, 0, 1, 2))
    assert about == {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a good file, and a path to put bad ones."""
    path = tmp_path_factory.mktemp("damage") / "a.safetensors"
    store.save_tensors(path, TENSORS, ABOUT)
    return path.read_bytes(), path


@given(st.data())
def test_a_changed_byte_anywhere_is_noticed(whole, data):
    content, path = whole
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    # One exception: blanks behind the header are worth the same whichever kind they are.
    if content[place] in b" " and changed[place] in b"\t\n\r":
        found, about = store.load_tensors(path)
        assert same(found, TENSORS)
        assert about == ABOUT
    else:
        with pytest.raises(StoreError, match=r"a\.safetensors"):
            store.load_tensors(path)


def test_every_header_byte_is_guarded(whole):
    """Exhaustive where it matters most: the step of a checkpoint is in the header, not in a tensor."""
    content, path = whole
    length = 8 + int.from_bytes(content[:8], "little")
    believed = []
    for place in range(length):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        try:
            store.load_tensors(path)
        except StoreError:
            continue
        believed.append(place)
    assert believed == []


@given(st.data())
def test_a_truncated_file_is_refused(whole, data):
    content, path = whole
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(StoreError):
        store.load_tensors(path)


def test_a_file_with_more_behind_it_is_refused(whole):
    content, path = whole
    path.write_bytes(content + b"\0")
    with pytest.raises(StoreError):
        store.load_tensors(path)


def test_a_newer_file_is_refused_with_advice(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(store, "SCHEMA", store.SCHEMA + 1)
        store.save_tensors(path, TENSORS)
    with pytest.raises(StoreError, match=r"newer fscil .*Upgrade fscil"):
        store.load_tensors(path)


def test_a_file_of_another_program_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file(TENSORS, tmp_path / "a.safetensors")
    with pytest.raises(StoreError, match="checksum"):
        store.load_tensors(tmp_path / "a.safetensors")


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(StoreError, match="no such file"):
        store.load_tensors(tmp_path / "nothing.safetensors")
    with pytest.raises(StoreError):
        store.load_tensors(tmp_path)


# JSON


def test_json_round_trip_and_its_errors(tmp_path):
    path = tmp_path / "a.json"
    store.write_json(path, {"name": "鹿", "values": [1, None, 0.5]})
    assert store.read_json(path) == {"name": "鹿", "values": [1, None, 0.5]}
    with pytest.raises(ValueError, match="Out of range"):
        store.write_json(path, {"value": float("nan")})
    assert store.read_json(path)["name"] == "鹿"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match=r"a\.json: cannot be read as JSON"):
        store.read_json(path)
    with pytest.raises(StoreError, match="nothing"):
        store.read_json(tmp_path / "nothing.json")


@pytest.mark.parametrize("tail", [b'{"step": 3, "lo', b"\0\0\0\0", b"\xff\xfe", b""])
def test_a_torn_last_line_is_skipped(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        store.append_json_line(path, {"step": step})
    with path.open("ab") as file:
        file.write(tail)
    assert store.read_json_lines(path) == [{"step": 1}, {"step": 2}]


def test_a_damaged_line_is_left_out_and_counted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        store.append_json_line(path, {"step": step, "loss": 0.5})
    whole = path.read_bytes()
    length = len(whole) // 3
    for bit in range(8 * length):
        damaged = bytearray(whole)
        damaged[length + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.warns(FscilWarning, match=r"\d of \d lines are damaged"):
            found = store.read_json_lines(path)
        assert [line["step"] for line in found if line["step"] != 3] == [1]
        assert all(line["loss"] == 0.5 for line in found)


def test_lines_of_older_versions_have_no_checksum(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.25}\n')
    assert store.read_json_lines(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 0.25}]


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | FINITE | st.text()))
def test_checked_json_comes_back(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("checked") / "run.json"
    content.pop("checksum", None)
    store.write_checked_json(path, {f"x{key}": value for key, value in content.items()})
    assert store.read_checked_json(path) == {f"x{key}": value for key, value in content.items()}


def test_every_flipped_bit_of_checked_json_is_noticed(tmp_path):
    path = tmp_path / "run.json"
    store.write_checked_json(path, {"schema": 1, "data": "/photos", "seconds": 1.5, "machine": {"cores": 2}})
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"checksum|cannot be read as JSON"):
            store.read_checked_json(path)


def test_no_lines_where_there_is_no_file(tmp_path):
    assert store.read_json_lines(tmp_path / "none.jsonl") == []


def test_lines_are_plain_jsonl(tmp_path):
    path = tmp_path / "metrics.jsonl"
    store.append_json_line(path, {"step": 1, "note": "line\u2028break\n"})
    (line,) = path.read_text().split("\n")[:-1]
    found = json.loads(line)
    assert found.pop("checksum").startswith("sha256:")
    assert found == {"step": 1, "note": "line\u2028break\n"}


def test_digest_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert store.digest_of_file(tmp_path / "a", "md5") == "900150983cd24fb0d6963f7d28e17f72"
    assert store.digest_of_file(tmp_path / "a").startswith("ba7816bf")
