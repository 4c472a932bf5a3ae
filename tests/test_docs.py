"""The documents say what is true: modules, names, links, commands and settings that they name are there."""

import re
import shlex
import tomllib
from importlib import import_module, util
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

from fscil.cli import app
from fscil.config import Config, flatten
from fscil.methods import METHODS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fscil"
PLACES = ("*.md", "docs/*.md", "results/*.md", "results/*/README.md")
DOCUMENTS = [path for place in PLACES for path in ROOT.glob(place)]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(*place):
    return ROOT.joinpath(*place).read_text(encoding="utf-8")


def resolve(name):
    """The object of a dotted name: the longest module in it, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


# docs/architecture.md


def listed_files():
    """Every path of the tree in the document: {path: its line of text}; a folder ends with a slash."""
    (tree,) = (content for language, content in FENCE.findall(text_of("docs", "architecture.md")) if language == "text")
    root, *lines = tree.splitlines()
    assert root == "src/fscil/"
    found, folders = {}, []
    for line in filter(None, lines):
        indent, name, about = re.fullmatch(r"((?:  )+)(\S+) +(.+)", line).groups()
        folders[len(indent) // 2 - 1 :] = [name]
        found["".join(folders)] = about
    return found


def test_the_tree_has_every_module_and_no_other():
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    packages = {path.removesuffix("__init__.py") for path in modules if path.endswith("/__init__.py")}
    expected = {path for path in modules if not path.endswith("/__init__.py")} | packages
    listed = set(listed_files())
    assert expected - listed == set(), "not in docs/architecture.md: add a line for each"
    assert {path for path in listed - expected if not (SOURCE / path).is_dir()} == set(), "not in src/fscil"


def test_a_module_is_a_line():
    for path, about in listed_files().items():
        assert 5 < len(about) < 100, path


def test_the_layers_are_those_that_are_checked():
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    checked = [set(re.findall(r"fscil\.(\w+)", layer)) for layer in layers]
    rows = re.findall(r"^\| (`.+`) \| .+ \|$", text_of("docs", "architecture.md"), re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == checked


def walks():
    """The steps of the two numbered lists."""
    sections = re.split(r"^## ", text_of("docs", "architecture.md"), flags=re.MULTILINE)
    chosen = [section for section in sections if re.match(r"An? \w+, from ", section)]
    return [re.findall(r"^\d+\. .+\n(?:   .+\n)*", section, re.MULTILINE) for section in chosen]


def test_both_walks_take_ten_hops():
    assert [len(steps) for steps in walks()] == [10, 10]
    assert all("`fscil." in step for steps in walks() for step in steps)


NAMES = sorted(set(re.findall(r"`(fscil\.[\w.]+)`", text_of("docs", "architecture.md"))))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_architecture_is_there(name):
    assert resolve(name) is not None


# CHANGELOG.md

MOVED = re.findall(r"^\| `([\w.]+)`(?: \(.+\))? \| `([\w.]+)`(?: \((.+)\))? \|$", text_of("CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize(("old", "new", "names"), MOVED)
def test_a_moved_module_is_where_the_changelog_says(old, new, names):
    module = import_module(new)
    for name in re.findall(r"\w+", names):
        assert hasattr(module, name)
    try:
        gone = util.find_spec(old) is None or util.find_spec(old).origin is None
    except ModuleNotFoundError:
        gone = True
    assert gone


# docs/usage.md, docs/methods.md


def test_every_setting_is_in_the_table_of_its_section():
    _, table = text_of("docs", "usage.md").split("| section | settings |")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE))
    for key in flatten(Config()):
        section, _, setting = key.rpartition(".")
        if section and key != "data.word_vectors":  # an option of its own, --word-vectors
            assert f"`{setting}`" in rows[section], key


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_section(name):
    assert f"\n## {name}\n" in text_of("docs", "methods.md")


# All documents


def anchors(text):
    """Of the headings, as GitHub makes them."""
    plain = FENCE.sub("", text)
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        there = document.parent / path if path else document
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


def documented_commands():
    """Every line of a fence that begins with `fscil VERB`."""
    verbs = typer.main.get_command(app).commands
    for document in DOCUMENTS:
        for _, content in FENCE.findall(document.read_text(encoding="utf-8")):
            for line in content.replace("\\\n", " ").splitlines():
                words = line.removeprefix("$ ").split("#")[0].strip()
                if re.match(r"fscil [a-z]", words):
                    yield document, verbs, shlex.split(words)


def test_commands_and_their_options_exist():
    found = list(documented_commands())
    assert len(found) > 30
    for document, verbs, (_, verb, *rest) in found:
        assert verb in verbs, (document.name, verb)
        known = {option for parameter in verbs[verb].params for option in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known | {"--help"}, (document.name, verb, rest)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_in_documents_is_python(document):
    for language, content in FENCE.findall(document.read_text(encoding="utf-8")):
        if language == "python":
            compile(content, document.name, "exec")


# What surrounds the project


def test_the_workflow_runs_ci_on_every_python_that_is_promised():
    promised = re.findall(r"Python :: (3\.\d+)", text_of("pyproject.toml"))
    workflow = text_of(".github", "workflows", "ci.yml")
    assert re.search(r"python: \[(.+)\]", workflow)[1].replace('"', "").split(", ") == promised
    assert "run: .ci/run" in workflow
    assert re.search(r"^torch==", text_of("constraints.txt"), re.MULTILINE)


def test_the_first_version_of_the_changelog_is_this_or_the_next():
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert resolve("fscil").__version__.removesuffix(".dev0") in versions[:2]


def test_the_slow_files_that_are_left_out_exist():
    tests = ROOT / "tests"
    listed = re.search(r"^SLOW = \((.*?)^\)", text_of("tests", "conftest.py"), re.DOTALL | re.MULTILINE)[1]
    assert all((tests / path).exists() for path in re.findall(r'"(.+?)"', listed))
