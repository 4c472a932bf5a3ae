"""Importing fscil is light: torch is imported only by what needs it."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points

import pytest

import fscil


def run(program, *arguments):
    found = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


LIGHT = [
    *("fscil", "cli", "config", "data", "errors", "experiments.published", "metrics", "protocol", "report"),
    *("runtime.progress", "runtime.registry", "runtime.files", "training.run_folder"),
]


@pytest.mark.parametrize("name", LIGHT)
def test_no_torch_before_its_time(name):
    module = name if name == "fscil" else f"fscil.{name}"
    heavy = run(f"import sys, {module}; print(*(sys.modules.keys() & {{'torch', 'sklearn', 'scipy', 'matplotlib'}}))")
    assert heavy == "\n"


def test_importing_the_package_imports_nothing_else():
    assert run("import sys, fscil; print(*(name for name in sys.modules if name.startswith('fscil')))") == "fscil\n"


COMMAND = """
import sys
from fscil.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("torch" in sys.modules)
"""


def test_help_lists_the_commands_without_torch():
    *help_text, heavy = run(COMMAND, "--help").splitlines()
    assert heavy == "False"
    for command in ("fit", "enroll", "predict", "serve", "demo", "recipes", "data", "train", "evaluate", "bench"):
        assert any(command in line.split()[:1] for line in help_text)


@pytest.mark.parametrize("command", ["demo", "recipes", "data", "train", "evaluate", "bench", "study", "report"])
def test_help_of_a_command(command):
    *help_text, heavy = run(COMMAND, command, "--help").splitlines()
    assert heavy == "False"
    assert "Usage:" in "\n".join(help_text)


def test_recipes_are_listed_without_torch():
    *listed, heavy = run(COMMAND, "recipes").splitlines()
    assert heavy == "False"
    assert any(line.startswith("cifar100 ") for line in listed)


def test_the_console_script_is_the_command_line():
    (script,) = entry_points(group="console_scripts", name="fscil")
    assert script.value == "fscil.cli:main"


def test_public_names_come_when_they_are_used():
    program = """
import sys, fscil
assert fscil.published_draw(500, 1) == [304]
assert "torch" not in sys.modules
assert fscil.angular_penalty.__name__ == "angular_penalty"
assert "torch" in sys.modules
"""
    assert run(program) == ""


@pytest.mark.parametrize("name", fscil.__all__)
def test_every_name_that_is_offered_is_there(name):
    assert name in dir(fscil)
    assert getattr(fscil, name) is not None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("losses", "angular_penalty"),
        ("mixing", "pair_label"),
        ("mixing", "mix_classes"),
        ("protocol", "Protocol"),
        ("protocol", "published_draw"),
        ("metrics", "harmonic_accuracy"),
        ("gallery", "balanced_indices"),
        ("data", "load"),
        ("models", "build_backbone"),
    ],
)
def test_public_names_keep_their_module(module, name):
    assert callable(getattr(import_module(f"fscil.{module}"), name))


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fscil.nonsense
    assert not hasattr(fscil, "nonsense")
