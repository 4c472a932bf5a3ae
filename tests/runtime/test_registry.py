"""Names of methods, data sets, backbones and losses: those of fscil, of installed packages and of single files."""

import os
import subprocess
import sys

import pytest

from fscil.errors import ConfigError, DataError
from fscil.runtime.registry import Registry, load_plugin


@pytest.fixture
def registry():
    return Registry("shape", "test.shapes", {"circle": "my_circle:draw", "square": len})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package: my_shapes, with two entry points, of which one cannot be loaded."""
    (tmp_path / "my_shapes.py").write_text("def hexagon():\n    return 6\n")
    (tmp_path / "my_broken.py").write_text("raise RuntimeError('no GPU here')\n")
    info = tmp_path / "my_shapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-shapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[test.shapes]\nhexagon = my_shapes:hexagon\nbroken = my_broken:draw\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_shapes", "my_broken"):
        sys.modules.pop(name, None)


# What comes with fscil


def test_a_builtin_is_imported_when_it_is_used(registry, tmp_path, monkeypatch):
    (tmp_path / "my_circle.py").write_text("def draw():\n    return 'round'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(registry) == ["circle", "square"]
    assert "circle" in registry
    assert "my_circle" not in sys.modules
    assert registry["circle"]() == "round"
    assert registry["circle"] is sys.modules.pop("my_circle").draw
    assert registry["square"] is len


def test_it_is_a_mapping(registry):
    assert len(registry) == 2
    assert "triangle" not in registry
    assert dict(Registry("shape", "test.none", {"square": len})) == {"square": len}


def test_an_unknown_name_lists_what_is_installed_and_suggests(registry):
    with pytest.raises(
        ConfigError, match=r'^no shape named "Cicrle"\. Did you mean "circle"\? Installed: circle, square\.$'
    ):
        registry["Cicrle"]
    with pytest.raises(ConfigError, match=r'^no shape named "xyz"\. Installed: circle, square\.$'):
        registry["xyz"]


def test_the_error_is_of_the_registrys_kind():
    with pytest.raises(DataError, match="no data set named"):
        Registry("data set", "test.none", {}, error=DataError)["cub"]


# What is registered


def test_register_and_unregister(registry):
    @registry.register("triangle")
    def draw():
        return 3

    assert registry["triangle"] is draw
    assert list(registry) == ["circle", "square", "triangle"]
    registry.unregister("triangle")
    assert "triangle" not in registry
    registry.register("triangle")(len)
    assert registry["triangle"] is len


def test_a_name_is_given_once(registry, package):
    for name in ("square", "circle", "hexagon"):
        with pytest.raises(ConfigError, match=f'^shape "{name}" exists already. Choose another name.$'):
            registry.register(name)(len)
    assert registry["square"] is len


# What other packages bring


def test_a_packages_entry_point(registry, package):
    assert list(registry) == ["circle", "square", "hexagon", "broken"]
    assert "my_shapes" not in sys.modules
    assert registry["hexagon"]() == 6
    assert len(registry) == 4


def test_an_entry_point_that_fails_to_load_names_its_package(registry, package):
    with pytest.raises(ConfigError, match=r'^shape "broken" of the package my-shapes cannot be loaded: no GPU here$'):
        registry["broken"]
    assert registry["hexagon"]() == 6


def test_fscils_own_name_wins_over_a_package(package):
    mine = Registry("shape", "test.shapes", {"hexagon": len})
    assert mine["hexagon"] is len
    assert list(mine) == ["hexagon", "broken"]


# A single file


@pytest.fixture
def plugin(tmp_path):
    """plugin(text, name) writes a file; what it imports is forgotten after the test."""
    before = set(sys.modules)

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("fscil_plugin_"):
            del sys.modules[name]


COUNTS = "import os\nos.environ['PLUGIN_RUNS'] = os.environ.get('PLUGIN_RUNS', '') + {!r}\n"


def test_a_plugin_is_imported_once(plugin, monkeypatch):
    monkeypatch.setenv("PLUGIN_RUNS", "")
    path, other = plugin(COUNTS.format("x")), plugin(COUNTS.format("y"), "other/mine.py")
    for _ in range(2):
        load_plugin(path)
        load_plugin(other)  # of the same name in another folder
    load_plugin(path.parent / "other" / ".." / "mine.py")
    assert os.environ["PLUGIN_RUNS"] == "xy"


def test_the_classes_of_a_plugin_know_their_module(plugin):
    path = plugin("import dataclasses\n@dataclasses.dataclass\nclass Mine:\n    size: 'int' = 1\n")
    load_plugin(path)
    (module,) = (sys.modules[name] for name in sys.modules if name.startswith("fscil_plugin_"))
    assert sys.modules[module.Mine.__module__] is module
    assert module.Mine(3).size == 3


@pytest.mark.parametrize("name", ["gone.py", ".", "notes.txt"])
def test_a_plugin_that_is_no_python_file(tmp_path, name):
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"^--plugin .*: no such Python file\.$"):
        load_plugin(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nonsense_of_mine", "ModuleNotFoundError: No module named 'nonsense_of_mine'"),
        ("raise ValueError('no')", r"ValueError: no\)"),
        ("def", "SyntaxError: "),
    ],
)
def test_a_plugin_with_an_error_can_be_corrected(plugin, text, message):
    path = plugin(text)
    with pytest.raises(ConfigError, match=rf"^--plugin .*mine\.py: cannot be imported \({message}"):
        load_plugin(path)
    path.write_text("VALUE = 'a longer text than before'\n")
    load_plugin(path)


def test_a_plugin_registers_what_the_command_line_then_finds(plugin):
    path = plugin(
        "from fscil.data import DATASETS\n"
        "@DATASETS.register('mine')\n"
        "def load(root):\n"
        "    raise RuntimeError('reached')\n"
    )
    program = (
        "import sys\nfrom pathlib import Path\nfrom fscil.runtime.registry import load_plugin\n"
        "load_plugin(Path(sys.argv[1]))\nimport fscil.data\nprint(list(fscil.data.DATASETS))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "'mine'" in done.stdout


def test_get_of_an_unknown_name_is_the_default():
    registry = Registry("animal", "fscil.animals", {"ant": 1})
    assert registry.get("ant") == 1
    assert registry.get("bee") is None
    assert registry.get("bee", 2) == 2
