"""A few kills of each scenario of benchmarks/crash.py: nothing acknowledged is lost. make crash does a thousand."""

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "crash.py"


def test_nothing_acknowledged_is_lost():
    done = subprocess.run(
        [sys.executable, PROGRAM, "--kills", "15"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| ([a-z ]+) \| +(\d+) \| +[\d,]+ \| +(\d+) \|$", done.stdout, re.MULTILINE)
    assert len(rows) == 5
    assert {(kills, lost) for _, kills, lost in rows} == {("3", "0")}
