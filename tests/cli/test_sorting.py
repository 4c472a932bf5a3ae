"""Photos sorted by what they show: folders, a record to resume from, folders that fill."""

import csv
from contextlib import suppress

import pytest

from fscil.classifier import Prediction
from fscil.cli.sorting import COLUMNS, Sorter, arriving, folder_name
from fscil.errors import StoreError


def answer(label, state):
    return Prediction(None if state == "unknown" else label, 1.0, None, 1.0, ((label, 1.0),), 0.5, 0.2, (0.5,), state)


@pytest.fixture
def photos(tmp_path):
    for name in ("a/1.jpg", "b/1.jpg", "a/2.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "photos"


@pytest.mark.parametrize("link", [False, True])
def test_known_maybe_and_unknown_have_their_folders(photos, tmp_path, link):
    sorter = Sorter(tmp_path / "out", link)
    sorter.add(photos / "a/1.jpg", answer("robin", "known"))
    sorter.add(photos / "b/1.jpg", answer("robin", "known"))
    sorter.add(photos / "a/2.jpg", answer("robin", "maybe"))
    sorter.add(photos / "a/1.jpg", answer("robin", "unknown"))
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.jpg")}
    assert found == {"robin/1.jpg", "robin/1-2.jpg", "maybe/robin/2.jpg", "unknown/1.jpg"}
    assert (tmp_path / "out/robin/1-2.jpg").read_text() == "b/1.jpg"
    assert (tmp_path / "out/robin/1.jpg").is_symlink() == link


@pytest.mark.parametrize("half", [b"kno", "known,Bär".encode()[:-2]], ids=["word", "letter"])
def test_what_is_recorded_is_done_and_a_torn_line_is_not(photos, tmp_path, half):
    paths = sorted(photos.rglob("*.jpg"))
    first = Sorter(tmp_path / "out")
    assert first.todo(paths) == paths
    first.add(paths[0], answer("robin", "known"))
    record = tmp_path / "out" / "predictions.csv"
    with record.open("ab") as file:
        file.write(f"{paths[1]},".encode() + half)  # the power went off
    second = Sorter(tmp_path / "out")
    assert record.read_text().endswith("robin/1.jpg\n")
    assert second.todo(paths) == paths[1:]
    second.add(paths[1], answer("wren", "maybe"))
    with record.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["state"], row["label"], row["file"]) for row in rows] == [
        ("known", "robin", "robin/1.jpg"),
        ("maybe", "wren", "maybe/wren/2.jpg"),
    ]
    inside = tmp_path / "out" / "robin" / "1.jpg"
    assert second.todo([inside]) == []  # the output is no input


@pytest.mark.parametrize(
    "content",
    [
        b"mine\n1\n",
        b",".join(name.encode() for name in COLUMNS) + b"\n" + b"x" * 140_000 + b",known,robin,,,robin/1.jpg\n",
        b"\xff\xfe not text \x80\n",
        b"\x00\x00,\x00\n",
        b'"never closed',
    ],
    ids=["columns", "long field", "not UTF-8", "NUL", "open quote"],
)
def test_a_file_of_somebody_else_is_not_a_record(tmp_path, content):
    (tmp_path / "predictions.csv").write_bytes(content)
    with pytest.raises(StoreError, match="not a record") as raised:
        Sorter(tmp_path)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "predictions.csv").read_bytes() == content


@pytest.mark.parametrize(
    ("label", "name"),
    [("robin", "robin"), ("a/b\\c", "a_b_c"), ("..", "_."), (".x", "_x"), ("Unknown", "Unknown_"), ("maybe", "maybe_")],
)
def test_every_class_is_a_folder_below(label, name, tmp_path):
    assert folder_name(label) == name
    assert (tmp_path / folder_name(label)).resolve().parent == tmp_path.resolve()


def test_photos_that_arrive_are_given_once_when_they_are_complete(tmp_path):
    looks = 0

    def wait():
        nonlocal looks
        looks += 1
        if looks == 2:
            (tmp_path / "b.jpg").write_text("ha")
        if looks == 3:
            (tmp_path / "b.jpg").write_text("half")  # still being written
        if looks == 6:
            raise KeyboardInterrupt

    (tmp_path / "a.jpg").write_text("whole")
    (tmp_path / "old.jpg").write_text("seen before")
    found = []
    batches = arriving(lambda: sorted(tmp_path.iterdir()), [tmp_path / "old.jpg"], wait)
    with suppress(KeyboardInterrupt):
        for batch in batches:
            found.append((looks, [path.name for path in batch]))
    assert found == [(1, ["a.jpg"]), (4, ["b.jpg"])]
