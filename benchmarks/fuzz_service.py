"""Requests made from the service's own OpenAPI document by schemathesis: no answer is a failure inside.

    python benchmarks/fuzz_service.py [--seconds 60]

A real server on a small model, which gets photos as well (fuzz_service_photos.py). Requests are examples, systematic
ones for every operation, random ones, and sequences of those that belong together. Findings are answers of 500 and
above, answers that the document does not describe, a server that ended, and a run that does not end in time. Progress
goes to stderr every five seconds. Ends with a row of a table, and with exit code 1 if there are findings; without
schemathesis it says so and ends.
"""

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from forge import example_model
from service import Service

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PHASES = "examples,coverage,fuzzing,stateful"
MOST = 10**6  # requests of an operation and phase: time ends them
GRACE_SECONDS = 60.0  # to finish what has begun, on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--examples", type=int, default=MOST, help="at most so many random requests per operation")
    options = parser.parse_args()
    if importlib.util.find_spec("schemathesis") is None:
        print("schemathesis is not installed: the service was not tried")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        example_model(model)
        service = Service(model, "--keep-unknown")
        try:
            said, code = requested(f"http://{service.address}", options.seconds, options.examples, Path(folder))
            alive = service.process.poll() is None
        finally:
            service.end(signal.SIGTERM)
    tried = sum(map(int, re.findall(r"(\d+) generated", said)))
    findings = int(code != 0 or not alive or not tried)
    print(f"| target | inputs | findings |\n|---|---:|---:|\n| service | {tried:,} | {findings} |")
    return findings


def requested(address: str, seconds: int, examples: int, folder: Path) -> tuple[str, int]:
    """What schemathesis said, which is shown meanwhile, and its exit code."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--url", address]
    command += ["--checks", CHECKS, "--phases", PHASES, "--max-examples", str(examples), "--max-time", str(seconds)]
    command += ["--request-timeout", "60", "--suppress-health-check", "all", "--seed", "1", "--no-color"]
    known = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join([str(Path(__file__).parent), *([known] if known else [])])
    settings = {**os.environ, "SCHEMATHESIS_HOOKS": "fuzz_service_photos", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=settings
    )
    assert running.stdout is not None
    late = threading.Timer(seconds + GRACE_SECONDS, running.kill)
    late.start()
    said = []
    try:
        for line in running.stdout:
            said.append(line)
            print(line, end="", file=sys.stderr, flush=True)
        return "".join(said), running.wait()
    finally:
        late.cancel()
        running.kill()


if __name__ == "__main__":
    sys.exit(main())
