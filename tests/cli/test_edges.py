"""Absurd arguments, paths and outputs: one line that says what is wrong, no traceback, and the right exit code."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.main import get_command

from fscil.cli import app, main
from fscil.cli.output import csv_lines, text_lines
from fscil.data.mini_imagenet import load as load_mini_imagenet
from fscil.errors import BadImageError, DataError
from serving import respect_permissions

MODEL = Path(__file__).parents[1] / "fixtures" / "model-schema1" / "model"
LONG = "a" * 5000
USAGE, OTHER = 2, 1


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Call the command line in an empty folder; its exit code and what it said on standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fscil", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", f"train.lr={'9' * 400}"],
        ["--set", f"train.epochs={'9' * 400}"],
        ["--set", f"train.epochs={'9' * 5000}"],
        ["--set", f"protocol.shots={'[' * 3000}"],
        ["--set", f"protocol.shots={'[' * 3000}{']' * 3000}"],
        ["--set", f"{'[' * 3000}=1"],
        ["--set", f"{'a.' * 3000}b=1"],
        ["--set", f"{LONG}=1"],
        ["--set", "train.seed=18446744073709551616"],
        ["--set", "train.lr=1e308"],
        ["--set", "model.width=100000"],
    ],
    ids=lambda arguments: arguments[1][:24],
)
def test_settings_beyond_any_sense(run, arguments):
    code, error = run("train", "glyphs", "--out", "run", *arguments)
    assert code == USAGE
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "glyphs", "--draws", "99999999999999"],
        ["bench", "glyphs", "--seeds", "99999999999999"],
        ["bench", "glyphs", "--shots", "9" * 400],
        ["bench", "glyphs", "--shots", "9" * 5000],
        ["study", "ablation", "glyphs", "--draws", "100000000"],
        ["evaluate", "run", "--draws", "99999999999999"],
        ["train", LONG],
        ["train", f"{'x/' * 3000}y.toml"],
        ["train", "glyphs", "--out", LONG],
        ["train", "glyphs", "--plugin", LONG],
        ["predict", "model", LONG],
        ["report", LONG],
        ["evaluate", LONG],
        ["enroll", LONG, "name", "photo"],
        ["copy", LONG, "model"],
        ["copy", MODEL, LONG],
        ["serve", MODEL, "--key", LONG],
        ["train", "glyphs", "--sessions", LONG],
        ["train", "folder", "--data", LONG],
    ],
    ids=lambda arguments: " ".join(map(str, arguments))[:40],
)
def test_numbers_and_names_beyond_any_sense(run, arguments):
    code, error = run(*arguments)
    assert code == USAGE
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert len(error) < 1000


@pytest.mark.parametrize("command", [None, *sorted(get_command(app).commands)])
def test_an_option_that_no_command_has(run, command):
    code, error = run(*([command] if command else []), "--no-such-option")
    assert code == USAGE
    assert error.startswith("error: No such option: --no-such-option")
    assert error.endswith(f". See: {f'fscil {command}' if command else 'fscil'} --help\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message", "command"),
    [
        (["train"], "Missing argument", "fscil train"),
        (["serve", "model", "--port", "many"], "Invalid value for '--port'", "fscil serve"),
        (["predict", "model", "photo", "--top", "0"], "Invalid value for '--top'", "fscil predict"),
        (["train", "glyphs", "--out"], "Option '--out' requires an argument", "fscil train"),
        (["recipes", "glyphs"], "Got unexpected extra argument", "fscil recipes"),
        (["no-such-command"], "No such command 'no-such-command'.", "fscil"),
        ([LONG], "No such command 'aaa", "fscil"),
        (["train", "glyphs", f"--{LONG}"], "No such option: --aaa", "fscil train"),
        (["train", "glyphs", "--a\nb\x1b[31m"], "No such option: --a", "fscil train"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistyped_commands(run, arguments, message, command):
    code, error = run(*arguments)
    assert code == USAGE
    assert error.startswith(f"error: {message}")
    assert error.endswith(f" See: {command} --help\n")
    assert error.count("\n") == 1
    assert len(error) < 1000


def test_no_arguments_are_a_request_for_help(capsys, monkeypatch):
    texts = []
    for arguments in ([], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["fscil", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "Usage: fscil" in texts[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", LONG, "-o", "m"],
        ["predict", LONG, "x"],
        ["data", "folder", "--root", LONG],
        ["forget", MODEL, LONG],
        ["enroll", MODEL, "a name without photos"],
        ["enroll", MODEL, "two\nlines", Path(__file__)],
    ],
    ids=["fit", "predict", "data", "forget", "enroll nothing", "enroll"],
)
def test_names_in_other_places(run, arguments):
    code, error = run(*arguments)
    assert code == USAGE
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "PATH", "-o", "m"],
        ["fit", "photos", "-o", "PATH"],
        ["train", "folder", "--data", "PATH"],
        ["train", "glyphs", "--plugin", "PATH"],
        ["check", MODEL, "PATH"],
        ["predict", MODEL, "PATH/a.jpg", "--sort-into", "PATH"],
    ],
    ids=lambda arguments: " ".join(map(str, arguments))[:8],
)
@pytest.mark.parametrize("path", ["loop", "~no-such-user/photos"])
def test_paths_that_lead_nowhere(run, arguments, path):
    """Links in a circle, and the home of a user who is not there."""
    Path("loop").symlink_to("loop")
    code, error = run(*(path if each == "PATH" else each for each in arguments))
    assert "Traceback" not in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert code in (USAGE, OTHER)  # where ~ is not looked at, the folder is missing


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the superuser gives up privileges as in Linux")
@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["train", "secret/r.toml"], "secret/r.toml"),
        (["train", "glyphs", "--out", "secret/run"], "secret/run"),
        (["predict", str(MODEL), "secret/x"], "secret/x"),
        (["predict", "secret/m", "photo.png"], "secret/m"),
        (["check", str(MODEL), "secret"], "secret"),
        (["predict", str(MODEL), "photo.png", "--sort-into", "secret/sorted"], "secret/sorted"),
    ],
    ids=lambda value: " ".join(value)[-24:] if isinstance(value, list) else "",
)
def test_a_forbidden_path(tmp_path, arguments, path):
    (tmp_path / "secret").mkdir(mode=0)
    Image.new("RGB", (30, 30)).save(tmp_path / "photo.png")
    process = fscil(*arguments, cwd=tmp_path, preexec_fn=respect_permissions, stdout=subprocess.DEVNULL)
    _, error = process.communicate()
    assert process.returncode == USAGE
    assert path in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_what_is_missing_is_no_mistake_of_usage(run):
    code, error = run("predict", "nothing", Path(__file__))
    assert code == OTHER
    assert error.count("\n") == 1


def fscil(*arguments, **options):
    command = [sys.executable, "-c", "from fscil.cli import main; main()", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["recipes"], ["data", "glyphs"], ["--help"]], ids=" ".join)
def test_output_to_a_full_device(arguments):
    with Path("/dev/full").open("w") as full:
        process = fscil(*arguments, stdout=full)
        _, error = process.communicate()
    assert error == "error: No space left on device.\n"
    assert process.returncode == USAGE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_errors_to_a_full_device():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "fscil", "train", "no-such-recipe"]
        assert subprocess.run(command, stderr=full, check=False).returncode == USAGE


def test_output_to_a_closed_pipe():
    read, write = os.pipe()
    os.close(read)
    process = fscil("recipes", stdout=write)
    os.close(write)
    _, error = process.communicate()
    assert error == ""
    assert process.returncode == OTHER


def test_a_field_longer_than_the_csv_module_takes(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(f"filename,label\n{'x' * 140_000},n01532829\n")
    with pytest.raises(DataError, match=r"train\.csv: not a list of images \(field larger than"):
        load_mini_imagenet(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", MODEL, "long.csv"],
        ["fit", "long.csv", "-o", "m"],
        ["train", "glyphs", "--sessions", "long.csv"],
        ["predict", MODEL, "photo.png", "--sort-into", "."],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_list_with_such_a_field(run, arguments):
    Path("long.csv").write_text(f"path,label,class,session\n{'x' * 140_000},a,b,0\n")
    Path("predictions.csv").write_text(f"{'x' * 140_000},a\n")
    Image.new("RGB", (30, 30)).save("photo.png")
    code, error = run(*arguments)
    assert code == USAGE
    assert "field larger than field limit" in error
    assert error.count("\n") == 1


# Names from anywhere

HOSTILE = Path("=cmd()\x1b[2J\u202e.jpg")


def test_control_characters_do_not_reach_the_terminal():
    out = io.StringIO()
    text_lines(out, 1)(HOSTILE, BadImageError("\x07bell\nand a line"))
    assert out.getvalue() == "=cmd()\\x1b[2J\\u202e.jpg: error: \\x07bell\\nand a line\n"


def test_cells_that_a_spreadsheet_would_compute():
    out = io.StringIO()
    csv_lines(out, 1)(HOSTILE, BadImageError("@sum"))
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert row["image"] == "'=cmd()\\x1b[2J\\u202e.jpg"
    assert row["error"] == "'@sum"


def test_a_name_in_an_error_is_escaped(run):
    _, error = run("train", "no\x1b[31mrecipe")
    assert "no\\x1b[31mrecipe" in error
