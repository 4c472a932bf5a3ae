"""constraints-floors.txt, with which make test-floors runs, has the floors of pyproject.toml."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNTESTED = {"torch"}  # as the file says
EXTRAS = ("pretrained", "serve")  # that make test-floors installs


def test_the_floors_that_are_tested_are_those_that_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    declared = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in [*project["dependencies"], *extras])
    lines = (ROOT / "constraints-floors.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, floor in declared.items():
        if name not in UNTESTED:
            assert tested[name] == floor + ".0" * (2 - floor.count(".")), name
