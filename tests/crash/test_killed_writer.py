"""kill -9 in the middle of a write leaves the old file whole."""

import signal
import subprocess
import sys

import pytest
import torch

from fscil.runtime.files import load_tensors, read_json, save_tensors, write_json

# Writes half of the new content to the disk, says so, and waits for its death.
HALF = """
import os, sys
from pathlib import Path
from fscil.runtime.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"x" * 100_000)
    file.flush()
    os.fsync(file.fileno())
    print("half", flush=True)
    sys.stdin.read()
    file.write(b"x" * 100_000)
"""

# Replaces a file over and over, each time with tensors that agree with each other and with their description.
OVER_AND_OVER = """
import sys
from pathlib import Path
import torch
from fscil.runtime.files import save_tensors
number = 0
while True:
    number += 1
    save_tensors(Path(sys.argv[1]), {name: torch.full((5000,), number) for name in "abcd"}, {"number": number})
    print(number, flush=True)
"""


def start(program, path):
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_killed_in_the_middle_of_a_file(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"average": 0.5})
    before = path.read_bytes()
    process = start(HALF, path)
    try:
        assert process.stdout.readline() == "half\n"
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert read_json(path) == {"average": 0.5}
    # It could not tidy up, but nothing takes its remains for a result.
    assert [each.suffix for each in tmp_path.iterdir() if each != path] == [".part"]


@pytest.mark.parametrize("lines", [1, 4])
def test_killed_at_any_moment(tmp_path, lines):
    path = tmp_path / "checkpoint.safetensors"
    save_tensors(path, {"a": torch.zeros(1)}, {"number": 0})
    process = start(OVER_AND_OVER, path)
    try:
        seen = [int(process.stdout.readline()) for _ in range(lines)]
    finally:
        process.kill()
        process.communicate()
    tensors, about = load_tensors(path)
    assert about["number"] >= seen[-1]
    assert all(tensor.unique().tolist() == [about["number"]] for tensor in tensors.values())
    assert sorted(tensors) == list("abcd")
