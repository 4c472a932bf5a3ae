"""One change of a gallery, as it is written to the rows of a database."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fscil.classifier.storage import tables
from fscil.classifier.storage.interface import Record
from fscil.errors import UnknownClassError
from fscil.gallery import Photo
from fscil.gallery.gallery import name_taken, no_photo
from fscil.gallery.negatives import no_negative

if TYPE_CHECKING:
    from fscil.classifier.storage.database import Connection


def apply(connection: "Connection", record: Record, version: int, negatives: bool) -> int | None:
    """What `apply_record` does, and raises. Returns the number of the class, None where there was nothing to change.

    version: of the model, after this change. negatives: whether there is a table of them.
    """
    name, do = record["name"], record["do"]
    if do == "enroll":
        return _enroll(connection, record, version, negatives)
    number = tables.number_of(connection, name)
    if number is None:
        if do == "reject":
            return None
        raise UnknownClassError(f'There is no class "{name}" among those enrolled.')
    match do:
        case "forget":
            connection.execute("DELETE FROM fscil_class WHERE id = %s", (number,))
        case "rename":
            if record["to"] != name and tables.number_of(connection, record["to"]):
                raise name_taken(record["to"])
            connection.execute("UPDATE fscil_class SET name = %s WHERE id = %s", (record["to"], number))
        case "remove":
            if not _remove(connection, number, [record["digest"]]):
                raise no_photo(name, record["digest"])
        case "discard":
            if not _remove(connection, number, record["digests"]):
                return None
        case "reject":
            _reject(connection, number, _photos(record), version)
        case "remove_negative":
            digest = record["digest"]
            if not negatives or not tables.remove_photos(connection, "fscil_negative", number, [digest]):
                raise no_negative(name, digest)
        case other:
            raise ValueError(f"no such change: {other}")
    return number


def _enroll(connection: "Connection", record: Record, version: int, negatives: bool) -> int:
    """What a class has learned is no negative example of it."""
    number = tables.add_class(connection, record["name"], record.get("origin", "enrolled"))
    photos = _photos(record)
    tables.add_photos(connection, "fscil_photo", number, photos, version)
    if negatives:
        tables.remove_photos(connection, "fscil_negative", number, [photo.digest for photo in photos])
    return number


def _remove(connection: "Connection", number: int, digests: Sequence[str]) -> int:
    """How many there were. With the last one the class goes too."""
    removed = tables.remove_photos(connection, "fscil_photo", number, digests)
    connection.execute(
        "DELETE FROM fscil_class c WHERE id = %s AND NOT EXISTS (SELECT 1 FROM fscil_photo WHERE class = c.id)",
        (number,),
    )
    return removed


def _reject(connection: "Connection", number: int, photos: Sequence[Photo], version: int) -> None:
    """Without those that another server has just enrolled."""
    enrolled = tables.having(connection, number, [photo.digest for photo in photos])
    rejected = [photo for photo in photos if photo.digest not in enrolled]
    tables.add_photos(connection, "fscil_negative", number, rejected, version)


def _photos(record: Record) -> list[Photo]:
    return [Photo.from_json(each) for each in record["photos"]]
