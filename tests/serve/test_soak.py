"""The soak at a small size: concurrent requests give what one thread makes of those that were acknowledged."""

import json
import os
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_concurrent_clients_equal_a_replay_of_what_was_acknowledged(model):
    found = subprocess.run(
        [sys.executable, SOAK, "--model", model, "--clients", "8", "--requests", "20", "--minutes", "5"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["requests"] == 8 * 20
    assert result["changes"] > 30
    assert (result["errors"], result["differences"]) == (0, 0)
    assert result["megabytes"]["most"] > 0
