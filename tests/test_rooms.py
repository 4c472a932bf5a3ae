"""A file imports only files above it in the list of rooms, and files of one room do not import in circles."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fscil

SOURCE = Path(fscil.__file__).parent

# From the ground up; a room is a file or a folder.
ROOMS = (
    "errors",
    "progress",
    "interrupts",
    "config",
    "store",
    "runs",
    "modelfolder",
    "metrics",
    "protocol",
    "data",
    "photos",
    "words",
    "resample",
    "preprocess",
    "augment",
    "models",
    "losses",
    "features",
    "gallery",
    "openset",
    "training",
    "methods",
    "sessions",
    "experiments",
    "grid",
    "studies",
    "report",
    "classifier",
    "sklearn",
    "export",
    "serve",
    "cli",
)
ANYWHERE = {"allocator"}  # knows nobody, and anybody may use it


def modules(source):
    """Dotted name, without the package's own, -> file; a package is its __init__."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source, name, path):
    """The modules of the package that this one imports anywhere: at the top, in a function, for types only."""
    known = modules(source)
    package = source.name
    here = [package, *name.split(".")] if name else [package]
    folder = here if path.name == "__init__.py" else here[:-1]
    wanted = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            wanted.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            inside = origin.removeprefix(package).removeprefix(".")
            for alias in node.names:  # from fscil import data: a module, not a name of the package
                deeper = f"{inside}.{alias.name}" if inside else alias.name
                is_module = origin.split(".")[0] == package and deeper in known
                wanted.add(f"{origin}.{alias.name}" if is_module else origin)
    own = {target for target in wanted if target.split(".")[0] == package}
    return {target.removeprefix(package).removeprefix(".") for target in own}


def room(name):
    return name.split(".")[0]


def offences(source):
    """What breaks the order of rooms, as text. The package itself names everybody, for type checkers only."""
    found = []
    for name, path in modules(source).items():
        for target in imported(source, name, path):
            mine, other = room(name), room(target)
            if mine in ("", other) or other in ("", *ANYWHERE):
                continue
            if mine in ANYWHERE or ROOMS.index(other) > ROOMS.index(mine):
                found.append(f"{mine} ({path.name}) imports {other}")
    return found


def test_every_file_has_a_room():
    rooms = {room(name) for name in modules(SOURCE)} - {""}
    assert rooms <= {*ROOMS, *ANYWHERE}, "a new file needs its place in the list of rooms"
    assert {"config", "data", "models", "methods", "cli"} <= rooms


def test_files_import_only_files_above_them():
    assert offences(SOURCE) == []


def test_no_circles():
    graph = {name: imported(SOURCE, name, path) - {name, ""} for name, path in modules(SOURCE).items()}
    assert sum(map(len, graph.values())) > 50
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("errors") < order.index("cli")


@pytest.mark.parametrize(
    ("file", "line", "offence"),
    [
        ("metrics.py", "from fscil.training import Trainer", "metrics (metrics.py) imports training"),
        ("metrics.py", "import fscil.training", "metrics (metrics.py) imports training"),
        ("metrics.py", "from fscil import training", "metrics (metrics.py) imports training"),
        ("metrics.py", "from .training import Trainer", "metrics (metrics.py) imports training"),
        ("metrics.py", "from . import training", "metrics (metrics.py) imports training"),
        ("data/images.py", "from ..training import x", "data (images.py) imports training"),
        ("metrics.py", "def f():\n    from fscil.data.images import Images", "metrics (metrics.py) imports data"),
        ("metrics.py", "if TYPE_CHECKING:\n    from fscil.data import Images", "metrics (metrics.py) imports data"),
        ("allocator.py", "from fscil import metrics", "allocator (allocator.py) imports metrics"),
        ("training.py", "from fscil import __version__, metrics\nimport fscil.data.images\nimport sklearn", None),
        ("metrics.py", "from fscil.allocator import tune", None),
        ("metrics.py", "from training import x", None),
    ],
)
def test_the_check_sees_every_way_to_import(tmp_path, file, line, offence):
    source = tmp_path / "fscil"
    (source / "data").mkdir(parents=True)
    for name in ("__init__.py", "metrics.py", "training.py", "allocator.py", "data/__init__.py", "data/images.py"):
        (source / name).write_text("")
    (source / file).write_text(line)
    assert offences(source) == ([offence] if offence else [])


def test_the_check_sees_circles(tmp_path):
    source = tmp_path / "fscil"
    (source / "data").mkdir(parents=True)
    (source / "data/__init__.py").write_text("from fscil.data.images import x")
    (source / "data/images.py").write_text("def f():\n    from fscil.data import load")
    graph = {name: imported(source, name, path) for name, path in modules(source).items()}
    assert graph == {"data": {"data.images"}, "data.images": {"data"}}
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph).static_order())
