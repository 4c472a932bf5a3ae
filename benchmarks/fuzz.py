"""Random input to everything that reads files and settings of others: an FscilError is fine, anything else a finding.

python benchmarks/fuzz.py [--seconds 60] [TARGET …]     seconds are per target

Inputs are mutations of valid ones. With atheris installed they are chosen by the code they reach, otherwise at random.
Ends with a table, and with exit code 1 if there are findings. The targets also run for a moment in the tests.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INSTRUMENTED = ["fscil", "fuzz_targets", "tomllib", "csv"]


def child(target: str, seconds: float) -> None:
    try:
        import atheris
    except ImportError:
        from fuzz_targets import at_random

        print(f"tried {at_random(target, seconds)}")
        return
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz_targets import TARGETS, check
    with tempfile.TemporaryDirectory() as corpus, tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(TARGETS[target][1]()):
            (Path(corpus) / str(number)).write_bytes(content)
        options = [f"-max_total_time={round(seconds)}", "-print_final_stats=1", "-max_len=20000", "-rss_limit_mb=4096"]
        arguments = [sys.argv[0], *options, f"-artifact_prefix={folder}/", corpus]
        atheris.Setup(arguments, lambda data: check(target, data, Path(folder)))
        atheris.Fuzz()  # ends the process


def run(target: str, seconds: float) -> tuple[int, str]:
    """Inputs tried and, if there is one, the finding."""
    command = [sys.executable, __file__, "--child", target, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    said = done.stderr + done.stdout
    tried = sum(map(int, re.findall(r"(?:number_of_executed_units: |tried )(\d+)", said)))
    return tried, "" if done.returncode == 0 else said[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.seconds)
        return 0
    from fuzz_targets import TARGETS

    total = findings = 0
    print("| target | inputs | findings |\n|---|---:|---:|")
    for target in options.targets or TARGETS:
        tried, failed = run(target, options.seconds)
        total, findings = total + tried, findings + bool(failed)
        print(f"| {target} | {tried:,} | {int(bool(failed))} |", flush=True)
        if failed:
            print(failed, file=sys.stderr)
    print(f"| all | {total:,} | {findings} |")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
