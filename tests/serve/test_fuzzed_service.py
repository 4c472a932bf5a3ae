"""Requests made from the OpenAPI document by schemathesis, for a moment; make fuzz does it at length."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "fuzz_service.py"


def test_no_answer_is_a_failure_inside():
    pytest.importorskip("schemathesis", reason="schemathesis, of the extra dev, is not installed")
    done = subprocess.run(
        [sys.executable, PROGRAM, "--seconds", "10", "--examples", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FSCIL_ENGINE": "torch"},
    )
    assert done.returncode == 0, done.stderr
    (tried,) = re.findall(r"\| service \| ([\d,]+) \| 0 \|", done.stdout)
    assert int(tried.replace(",", "")) > 50  # all 17 operations
    assert "requests (200: " in done.stderr  # progress
