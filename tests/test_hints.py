"""Every hint names a command that works: what texts of the program say about commands, options and extras is true.

Texts are the string literals of src/fscil, values of f-strings left out, and the lines of the page's scripts. Of
docstrings only those of the commands count, which --help prints.
"""

import ast
import re
import tomllib
from pathlib import Path

import typer

from fscil.cli import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fscil"
COMMANDS = {
    name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for name, command in typer.main.get_command(app).commands.items()
}
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
OF_OTHERS = {"--help", "--version", "--nnodes", "--nproc-per-node", "--max-restarts"}  # of fscil itself and of torchrun
IN_PROSE = {"has", "tables", "to", "without"}  # words after "fscil" where it is no command

COMMAND = re.compile(r"(?<![\w.])fscil ([a-z][\w-]*)((?:(?!(?<![\w.])fscil )[^.;:)\n“”]|\.(?=\S))*)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
EXTRA = re.compile(r"\bthe extra ([\w-]+)|\bthe ([\w-]+) extra\b|fscil\[([\w,-]+)\]")


def texts():
    """(file, text) of every literal; a value in an f-string is {}."""
    for path in sorted(SOURCE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        skipped = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        if path.parent.name != "cli":  # an expression that is a literal: a docstring
            skipped |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                yield path.relative_to(SOURCE).as_posix(), "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield path.relative_to(SOURCE).as_posix(), node.value
    for path in sorted(SOURCE.rglob("page/*.js")):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield from ((path.name, line) for line in lines if "fscil " in line)


TEXTS = [(file, " ".join(text.split())) for file, text in texts()]


def named_commands():
    """(file, command, the options that follow it in the same sentence)."""
    for file, text in TEXTS:
        for verb, rest in COMMAND.findall(text):
            yield file, verb, OPTION.findall(rest)


def test_a_command_that_is_named_exists_and_has_the_options_named_with_it():
    found = list(named_commands())
    assert len(found) > 80
    for file, verb, options in found:
        if verb not in IN_PROSE:
            assert verb in COMMANDS, (file, verb)
            assert {*options} <= COMMANDS[verb] | {"--help"}, (file, verb)


def test_an_option_that_is_named_is_one_of_some_command():
    known = set().union(*COMMANDS.values()) | OF_OTHERS
    unknown = {(file, option) for file, text in TEXTS for option in OPTION.findall(text) if option not in known}
    assert unknown == set()


def test_an_extra_that_is_named_exists():
    found = {(file, name) for file, text in TEXTS for names in EXTRA.findall(text) for name in names if name}
    named = {(file, name) for file, names in found for name in names.split(",")}
    assert {name for _, name in named} >= {"postgres", "pretrained"}  # the pattern finds something
    assert {(file, name) for file, name in named if name not in EXTRAS} == set()


def test_an_extra_whose_installation_is_suggested_exists():
    calls = [
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "install_command"
    ]
    named = {word.value for call in calls for word in call.args if isinstance(word, ast.Constant)}
    assert len(named) > 3
    assert named <= EXTRAS


def test_the_readme_names_every_extra_for_users():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"Extras: (.*?)\.\s", readme, re.DOTALL)[1]
    named = {*re.findall(r"`([\w-]+)`", listed)}
    asked = {name for names in re.findall(r"\[([\w,-]+)\]", readme) for name in names.split(",") if name in EXTRAS}
    assert asked <= named <= EXTRAS
    assert EXTRAS - named <= {"dev", "wandb"}
