"""Session lists: a CSV file becomes settings, and what is wrong in one is told by its line."""

import pytest

from fscil.config import load_recipe
from fscil.config.session_lists import session_settings
from fscil.errors import ConfigError
from fscil.protocol import Protocol
from fscil.training.build import protocol_of
from helpers import NAMES, call, sets, tiny_dataset, write_images


@pytest.fixture
def listed(tmp_path):
    def write(text):
        path = tmp_path / "sessions.csv"
        path.write_bytes(text.encode())
        return path

    return write


def test_the_sessions_are_those_of_the_file(listed):
    rows = [("lynx", 2), ("ant", 0), ("鹿", 1), ("bee", 0), ("dög", 2), ("cat", 0), ("eel", 2)]
    path = listed("\ufeffnote,session,class\r\n" + "".join(f"x,{session},{name}\r\n" for name, session in rows))
    protocol = protocol_of(load_recipe("folder", session_settings(path)), tiny_dataset())
    order = tuple(NAMES.index(name) for name in ("ant", "bee", "cat", "鹿", "lynx", "dög", "eel"))
    assert protocol == Protocol(3, 5, 2, 5, order, (1, 3))
    assert [NAMES[label] for label in protocol.new(2)] == ["lynx", "dög", "eel"]


def test_names_with_quotes_and_commas(listed):
    config = load_recipe("folder", session_settings(listed('class,session\n"a ""b"", c",0\nd\\e,1\n')))
    assert config.protocol.order == ('a "b", c', "d\\e")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,session\na,0\n", 'must name the columns "class" and "session"'),
        ("class,session\n", "names no class"),
        ("class,session\na,0\nb,x\n", 'line 3: session "x" is no number'),
        ("class,session\na,0\nb,-1\n", 'line 3: session "-1"'),
        ("class,session\na,0\nb,2\n", "has sessions 0, 2. Number them 0"),
        ("class,session\na,1\n", "has sessions 1"),
        ("class,session\na,0\na,1\n", 'names "a" 2 times'),
    ],
)
def test_what_is_wrong_is_told(listed, text, told):
    with pytest.raises(ConfigError) as error:
        session_settings(listed(text))
    assert told in str(error.value)


def test_a_run_of_ones_own_sessions(listed, tmp_path, capsys):
    photos = write_images(tmp_path / "photos")
    numbers = [0, 0, 0, 0, 0, 1, 1, 1, 1, 2]
    lines = [f"{name},{number}\n" for name, number in zip(NAMES, numbers, strict=False)]
    path = listed("class,session\n" + "".join(lines))
    out, settings = tmp_path / "run", [item for item in sets("train.epochs=1") if "protocol.base" not in item]
    start = ["train", "folder", "--data", photos, "--sessions", path, "--out", out, "--quiet"]
    changes = [word for item in settings if item != "--set" and "protocol.way" not in item for word in ("--set", item)]
    assert call(*start, *changes) == 0
    assert call(*start, *changes, "--resume") == 0, "the same list, the same run"
    assert call("evaluate", out, "--shots", "2", "--quiet") == 0
    assert "2-step 4/1-way 2-shot" in capsys.readouterr().out
