"""The tables of a gallery in PostgreSQL, and how classes and photos are read from them and written to them.

One gallery per schema of a database. Every writer locks the one row of fscil_model first, so that changes happen one
after the other, and counts its version up. fscil_change tells which class each change was about, by its number alone:
no name and no photo of a class that was forgotten stays in it. Databases of layout 1 have no fscil_negative, until the
first negative example is written.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fscil.errors import StoreError
from fscil.gallery import Gallery, Origin, Photo
from fscil.gallery.snapshot import NEGATIVE

if TYPE_CHECKING:
    from fscil.classifier.storage.database import Connection

LAYOUT = 2  # of these tables
WITHOUT_NEGATIVES = 1  # which older versions read too
PHOTO_COLUMNS = """(
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    class bigint NOT NULL REFERENCES fscil_class ON DELETE CASCADE,
    digest text NOT NULL,                       -- SHA-256 of the pixels
    feature bytea NOT NULL,                     -- float32, little-endian
    source json NOT NULL,                       -- a string; as JSON because file names need not be Unicode
    added text NOT NULL,
    thumbnail bytea NOT NULL,                   -- a small JPEG, or nothing
    version bigint NOT NULL,                    -- of the model, when it was added
    UNIQUE (class, digest)
)"""
CREATE_NEGATIVES = f"""
CREATE TABLE IF NOT EXISTS fscil_negative {PHOTO_COLUMNS};  -- photos that do not show the class
"""
CREATE = f"""
CREATE TABLE IF NOT EXISTS fscil_tensors (
    sha256 text PRIMARY KEY,
    content bytea NOT NULL                      -- a safetensors file: the network, or the decision rule
);
CREATE TABLE IF NOT EXISTS fscil_model (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    layout integer NOT NULL,
    id text NOT NULL,                           -- another one after the whole model was replaced
    version bigint NOT NULL,                    -- counts changes
    about json NOT NULL,
    dim integer NOT NULL,                       -- numbers of a feature
    network text NOT NULL REFERENCES fscil_tensors,
    decision text REFERENCES fscil_tensors      -- NULL: the cosine rule
);
CREATE TABLE IF NOT EXISTS fscil_class (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    origin text NOT NULL
);
CREATE TABLE IF NOT EXISTS fscil_photo {PHOTO_COLUMNS};
{CREATE_NEGATIVES}
CREATE TABLE IF NOT EXISTS fscil_change (
    version bigint PRIMARY KEY,
    class bigint,                               -- NULL: of everything
    kind text NOT NULL                          -- enroll, forget, rename, remove, reject, remove_negative or describe
);
"""
# In an order to empty them in.
ALL = ("fscil_model", "fscil_photo", "fscil_negative", "fscil_class", "fscil_tensors", "fscil_change")
PHOTO = "p.digest, p.feature, p.source::text, p.added, p.thumbnail"
PhotoTable: TypeAlias = Literal["fscil_photo", "fscil_negative"]
ROWS_AT_ONCE = 1000


class ClassRow(NamedTuple):
    number: int
    name: str
    origin: Origin


def classes(connection: "Connection", numbers: Sequence[int] | None = None) -> list[ClassRow]:
    """In order of enrollment; with numbers, only those of them that are still there."""
    where, values = ("", ()) if numbers is None else ("WHERE id = ANY(%s)", ([*numbers],))
    rows = connection.execute(f"SELECT id, name, origin FROM fscil_class {where} ORDER BY id", values)
    return [ClassRow(*row) for row in rows]


class ClassChange(NamedTuple):
    """What has happened to a class."""

    number: int | None  # None: to everything
    removed: bool  # whether single photos were removed
    negatives: bool  # whether its negative examples may be others; what enrolling does to them, an enrollment tells
    times: int  # it was changed


def changes(connection: "Connection", since: int) -> list[ClassChange]:
    """All that is still told of, after a version."""
    rows = connection.execute(
        "SELECT class, bool_or(kind = 'remove'), bool_or(kind IN ('reject', 'remove_negative', 'remove')), count(*) "
        "FROM fscil_change WHERE version > %s GROUP BY class",
        (since,),
    )
    return [ClassChange(*row) for row in rows]


def digests_until(
    connection: "Connection", table: PhotoTable, numbers: Sequence[int], version: int
) -> dict[int, list[str]]:
    """Of the photos that these classes have had since this version or longer."""
    found: dict[int, list[str]] = {number: [] for number in numbers}
    query = f"SELECT class, digest FROM {table} WHERE class = ANY(%s) AND version <= %s ORDER BY id"
    for number, digest in connection.execute(query, ([*numbers], version)):
        found[number].append(digest)
    return found


def photos_since(
    connection: "Connection", table: PhotoTable, numbers: Sequence[int], version: int, dim: int
) -> dict[int, list[Photo]]:
    """Photos that were added to these classes after this version, in order."""
    rows = connection.execute(
        f"SELECT p.class, {PHOTO} FROM {table} p WHERE p.class = ANY(%s) AND p.version > %s ORDER BY p.id",
        ([*numbers], version),
        binary=True,
    )
    found: dict[int, list[Photo]] = {}
    for number, digest, feature, source, added, thumbnail in rows:
        vector = _features([feature], dim)[0]
        found.setdefault(number, []).append(Photo(digest, vector, json.loads(source), added, thumbnail))
    return found


def snapshot(connection: "Connection", known: Sequence[ClassRow], dim: int, negatives: bool) -> dict[str, Tensor]:
    """All photos, as `Gallery.snapshot` gives them. negatives: whether there is a table of them."""
    found = _snapshot(connection, "fscil_photo", known, dim)
    if negatives:
        rejected = _snapshot(connection, "fscil_negative", known, dim)
        if len(rejected["features"]):
            found |= {f"{NEGATIVE}{key}": value for key, value in rejected.items()}
    return found


def _snapshot(connection: "Connection", table: PhotoTable, known: Sequence[ClassRow], dim: int) -> dict[str, Tensor]:
    features, thumbnails, about = list[bytes](), list[bytes](), {row.number: list[list[str]]() for row in known}
    with connection.cursor(table, binary=True) as cursor:  # on the server, which sends some rows at a time
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(f"SELECT p.class, {PHOTO} FROM {table} p ORDER BY p.class, p.id")
        for number, digest, feature, source, added, thumbnail in cursor:
            about[number].append([digest, json.loads(source), added])
            features.append(feature)
            thumbnails.append(thumbnail)
    return {
        "features": _features(features, dim),
        "thumbnails": _bytes(b"".join(thumbnails)),
        "offsets": torch.tensor([0, *map(len, thumbnails)]).cumsum(0),
        "classes": _bytes(json.dumps(_named(table, known, about)).encode()),
    }


def _named(
    table: PhotoTable, known: Sequence[ClassRow], about: Mapping[int, list[list[str]]]
) -> list[dict[str, object]]:
    """The classes with what is said of their photos; those without negative examples are left out."""
    if table == "fscil_negative":
        return [{"name": row.name, "photos": about[row.number]} for row in known if about[row.number]]
    return [{"name": row.name, "origin": row.origin, "photos": about[row.number]} for row in known]


def add_class(connection: "Connection", name: str, origin: str = "enrolled") -> int:
    """The number of a class, which is made if there is none of this name."""
    connection.execute(
        "INSERT INTO fscil_class (name, origin) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING", (name, origin)
    )
    number = number_of(connection, name)
    assert number is not None
    return number


def number_of(connection: "Connection", name: str) -> int | None:
    row = connection.execute("SELECT id FROM fscil_class WHERE name = %s", (name,)).fetchone()
    return None if row is None else int(row[0])


def add_photos(connection: "Connection", table: PhotoTable, number: int, photos: Iterable[Photo], version: int) -> None:
    """Those whose digest the class has already are left out."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} (class, digest, feature, source, added, thumbnail, version) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (class, digest) DO NOTHING",
            [(number, *_columns(photo), version) for photo in photos],
        )


def having(connection: "Connection", number: int, digests: Sequence[str]) -> set[str]:
    """Those of the digests that are of photos of a class."""
    query = "SELECT digest FROM fscil_photo WHERE class = %s AND digest = ANY(%s)"
    return {digest for (digest,) in connection.execute(query, (number, [*digests]))}


def remove_photos(connection: "Connection", table: PhotoTable, number: int, digests: Sequence[str]) -> int:
    """How many there were."""
    query = f"DELETE FROM {table} WHERE class = %s AND digest = ANY(%s)"
    return connection.execute(query, (number, [*digests])).rowcount


def add_all(connection: "Connection", gallery: Gallery) -> None:
    """Into empty tables: the classes of a gallery, their photos and negative examples, in order."""
    with connection.cursor() as cursor, cursor.copy("COPY fscil_class (name, origin) FROM STDIN") as copy:
        for name in gallery.names:
            copy.write_row((name, gallery.info(name).origin))
    numbers = [row.number for row in classes(connection)]
    photos_of: list[tuple[PhotoTable, Callable[[str], Sequence[Photo]]]] = [
        ("fscil_photo", gallery.photos),
        ("fscil_negative", gallery.negatives),
    ]
    for table, photos in photos_of:
        into = f"COPY {table} (class, digest, feature, source, added, thumbnail, version) FROM STDIN"
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            for number, name in zip(numbers, gallery.names, strict=True):
                for photo in photos(name):
                    copy.write_row((number, *_columns(photo), 1))


def add_tensors(connection: "Connection", sha256: str, content: bytes) -> str:
    connection.execute(
        "INSERT INTO fscil_tensors (sha256, content) VALUES (%s, %s) ON CONFLICT (sha256) DO NOTHING",
        (sha256, content),
    )
    return sha256


def tensors(connection: "Connection", sha256: str) -> bytes:
    row = connection.execute("SELECT content FROM fscil_tensors WHERE sha256 = %s", (sha256,), binary=True).fetchone()
    return bytes(row[0]) if row else b""


def _columns(photo: Photo) -> tuple[str, bytes, str, str, bytes]:
    feature = photo.feature.detach().float().cpu().numpy().astype("<f4").tobytes()
    return photo.digest, feature, json.dumps(photo.source), photo.added, photo.thumbnail


def _features(features: Sequence[bytes], dim: int) -> Tensor:
    """(n, dim)"""
    if any(len(feature) != 4 * dim for feature in features):
        raise StoreError(f"a feature in the database has not {dim} numbers. Restore the database from a backup.")
    content = np.frombuffer(b"".join(features), "<f4").astype(np.float32)
    return torch.from_numpy(content.reshape(len(features), dim))


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
