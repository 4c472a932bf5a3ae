"""Random input to everything that reads files and settings of others: an FscilError is fine, anything else a finding.

python benchmarks/fuzz.py [--seconds 60] [--inputs N] [--random] [TARGET …]     seconds and inputs are per target
python benchmarks/fuzz.py --total 1000000 [--seconds 20]     rounds of so many seconds per target until the total

Inputs are mutations of valid ones. With atheris installed they are chosen by the code they reach, otherwise at random,
which is several times as fast. With --total the first round is by coverage and all others at random: every target gets
the same time, so that the cheap ones take most of the inputs. Set TMPDIR to a folder in memory, such as /dev/shm: every
input is a small file. Ends with a table, and with exit code 1 if there are findings, after which a target is left out.
The targets also run for a moment in the tests.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INSTRUMENTED = ["fscil", "fuzz_targets", "tomllib", "csv"]


def child(target: str, seconds: float, inputs: int, guided: bool) -> None:
    if not guided:
        from fuzz_targets import at_random

        print(f"tried {at_random(target, seconds, inputs)}")
        return
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz_targets import TARGETS, check
    with tempfile.TemporaryDirectory() as corpus, tempfile.TemporaryDirectory() as folder:
        seeds = TARGETS[target][1]()
        for number, content in enumerate(seeds):
            (Path(corpus) / str(number)).write_bytes(content)
        longest = 2 * max(map(len, seeds)) + 500  # of an input: longer ones take longer and reach no more
        options = [f"-max_total_time={round(seconds)}", f"-runs={inputs}", f"-max_len={longest}"]
        options += ["-print_final_stats=1", "-rss_limit_mb=4096"]
        arguments = [sys.argv[0], *options, f"-artifact_prefix={folder}/", corpus]
        atheris.Setup(arguments, lambda data: check(target, data, Path(folder)))
        atheris.Fuzz()  # ends the process


def run(target: str, seconds: float, inputs: int, guided: bool) -> tuple[int, str]:
    """Inputs tried and, if there is one, the finding."""
    command = [sys.executable, __file__, "--child", target, "--seconds", str(seconds), "--inputs", str(inputs)]
    command += [] if guided else ["--random"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    said = done.stderr + done.stdout
    tried = sum(map(int, re.findall(r"(?:number_of_executed_units: |tried )(\d+)", said)))
    return tried, "" if done.returncode == 0 else said[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, default=10**9, help="end a target earlier, after so many")
    parser.add_argument("--total", type=int, default=0, help="repeat until so many inputs of all targets were tried")
    parser.add_argument("--random", action="store_true", help="not by coverage, also where atheris is installed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.seconds, options.inputs, not options.random)
        return 0
    from fuzz_targets import TARGETS

    guided = importlib.util.find_spec("atheris") is not None and not options.random
    tried = dict.fromkeys(options.targets or TARGETS, 0)
    by_coverage, failed, rounds = dict(tried), set[str](), 0
    while not rounds or (sum(tried.values()) < options.total and len(failed) < len(tried)):
        for target in [each for each in tried if each not in failed]:
            count, finding = run(target, options.seconds, options.inputs, guided)
            tried[target] += count
            by_coverage[target] += count if guided else 0
            print(f"round {rounds + 1}: {target} {count:,}, all {sum(tried.values()):,}", file=sys.stderr, flush=True)
            if finding:
                failed.add(target)
                print(finding, file=sys.stderr, flush=True)
        guided, rounds = False, rounds + 1
    print("| target | inputs | of these by coverage | findings |\n|---|---:|---:|---:|")
    for target, count in tried.items():
        print(f"| {target} | {count:,} | {by_coverage[target]:,} | {int(target in failed)} |")
    print(f"| all | {sum(tried.values()):,} | {sum(by_coverage.values()):,} | {len(failed)} |")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
