"""Key files: which are valid, which are rejected, and what a key allows."""

import pytest

from fscil.errors import ConfigError
from fscil.serve.keys import Keys

READ, ENROLL = "r" * 16, "enroll-key-long-enough"


def load(tmp_path, text):
    path = tmp_path / "keys.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Keys.load(path)


def test_permissions_of_keys(tmp_path):
    keys = load(tmp_path, f"# a comment\n\n  read   {READ}  \nenroll {ENROLL}\r\n")
    assert keys.permission(READ.encode()) == "read"
    assert keys.permission(ENROLL.encode()) == "enroll"


@pytest.mark.parametrize("guess", [b"", b"r", b"r" * 15, b"r" * 17, b"R" * 16, b"read " + b"r" * 16, b"\xff" * 16])
def test_a_similar_key_is_not_valid(tmp_path, guess):
    assert load(tmp_path, f"read {READ}\n").permission(guess) is None


def test_repr_does_not_show_a_key(tmp_path):
    assert READ not in repr(load(tmp_path, f"read {READ}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key"),
        ("# only a comment\n", "no key"),
        (f"read {READ}\nwrite {ENROLL}\n", 'line 2: expected "read KEY" or "enroll KEY"'),
        (f"{READ}\n", "line 1: expected"),
        (f"read {READ} extra\n", "line 1: expected"),
        ("read fifteen-letters\n".replace("fifteen-letters", "x" * 15), "at least 16"),
        ("read schlüssel-mit-umlaut\n", "ASCII"),
        (f"read {READ}\nenroll {READ}\n", "line 2: this key is in the file already"),
        (b"read \xff\xff\n", "cannot be read"),
    ],
)
def test_invalid_files(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_no_error_shows_a_key(tmp_path):
    secret = "this-is-a-secret-key"
    for text in (f"wrong {secret}\n", f"read {secret}\nread {secret}\n", f"read {secret} {secret}\n"):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, text)
        assert secret not in str(caught.value)


def test_a_missing_file_says_how_to_create_one(tmp_path):
    with pytest.raises(ConfigError, match="secrets"):
        Keys.load(tmp_path / "none.txt")
