"""A gallery in PostgreSQL as a storage: a row per class and photo, a transaction per change, any number of servers."""

import hashlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fscil.classifier.model_folder import Contents, network_of, other_network
from fscil.classifier.storage import tables
from fscil.classifier.storage.database import Database, no_model
from fscil.classifier.storage.interface import Changes, Described, Network, Record, Version
from fscil.classifier.storage.row_changes import apply
from fscil.errors import ConfigError, FscilError, StoreError, UnavailableError
from fscil.gallery import Gallery
from fscil.runtime.files import pack_tensors, unpack_tensors

if TYPE_CHECKING:
    from fscil.classifier.storage.database import Connection

log = logging.getLogger(__name__)

CHANNEL = "fscil"
POLL_SECONDS = 1.0  # a change is read after this long at the latest, should its notification be lost
RETRY_SECONDS = 0.5  # until a lost connection is tried again
MAX_OUTDATED_SECONDS = 60.0  # that predictions go on without the database
CHANGES_KEPT = 10_000  # whoever is further behind reads everything anew
WAKE_SECONDS = 0.2  # in which a thread that waits notices that it should stop


@dataclass(frozen=True)
class _Model:
    """The row of fscil_model."""

    layout: int
    id: str
    version: int
    about: dict[str, Any]
    dim: int
    weights: str  # sha256
    decision: str | None  # sha256

    @property
    def at(self) -> tuple[str, int]:
        return self.id, self.version

    @property
    def keeps_negatives(self) -> bool:
        return self.layout > tables.WITHOUT_NEGATIVES

    @property
    def network(self) -> Network:
        return network_of(self.about, self.weights)


class PostgresStorage:
    """A database. Every server keeps the gallery in memory and reads what others have changed."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._read: tuple[str, int] | None = None  # the version that is known here
        self._names: dict[int, str] = {}  # of the classes of that version, by number
        self._last_contact: float | None = None  # while it follows the changes of others

    @property
    def place(self) -> str:
        return self._database.place

    @property
    def identity(self) -> str:
        return self._database.place

    def exists(self) -> bool:
        return self._database.run(_exists, read_only=True)

    def create(
        self,
        weights: Mapping[str, Tensor],
        about: Mapping[str, Any],
        snapshot: Mapping[str, Tensor],
        expected: Version | None = None,
        decision: Mapping[str, Tensor] | None = None,
    ) -> Version:
        gallery = Gallery.from_snapshot(snapshot)
        description = json.dumps(about, allow_nan=False)
        identifier = uuid.uuid4().hex

        def write(connection: "Connection") -> Version:
            if _exists(connection):
                self._locked(connection)  # before the tables are: other writers, which may add one, take this order
            _make_tables(connection, self.place)
            if _exists(connection):
                if expected and self._locked(connection).at != expected:
                    raise StoreError(f"{self.place}: the model has changed since it was read. Read it again first.")
                for table in tables.ALL:  # not TRUNCATE, which those who read an older state would see
                    connection.execute(f"DELETE FROM {table}")
            network, rule = (_put(connection, state) if state else None for state in (weights, decision))
            connection.execute(
                "INSERT INTO fscil_model (layout, id, version, about, dim, network, decision) "
                "VALUES (%s, %s, 1, %s, %s, %s, %s)",
                (tables.LAYOUT, identifier, description, gallery.dim, network, rule),
            )
            tables.add_all(connection, gallery)
            _notify(connection)
            return identifier, 1

        return self._database.run(write)

    def read(self) -> Contents:
        model, known, contents = self._database.run(self._contents, read_only=True)
        self._read, self._names = model.at, {row.number: row.name for row in known}
        return contents

    def version(self) -> Version:
        return self._database.run(lambda connection: self._model(connection).at, read_only=True)

    def changes_since(self, version: Version) -> Changes | None:
        if version != self._read or self._read is None:
            return None
        identifier, since = self._read

        def read(connection: "Connection") -> tuple[_Model, list[Record], dict[int, str | None]] | None:
            model = self._model(connection)
            if model.at == version:
                return model, [], {}
            changed = tables.changes(connection, since)
            told = sum(change.times for change in changed)
            if model.id != identifier or told != model.version - since or any(c.number is None for c in changed):
                return None
            found = self._records(connection, changed, since, model)
            return found and (model, *found)

        found = self._database.run(read, read_only=True)
        if found is None:
            return None
        model, records, names = found
        for number, name in names.items():
            if name is None:
                self._names.pop(number, None)
            else:
                self._names[number] = name
        self._read = model.at
        return Changes(records, model.at)

    def write(self, record: Record, network: Network) -> None:
        def work(connection: "Connection") -> None:
            model = self._locked(connection, network)
            version, kind = model.version + 1, record["do"]
            if kind == "reject" and not model.keeps_negatives:
                _add_negatives(connection)
            number = apply(connection, record, version, model.keeps_negatives)
            if number is None:
                return
            if kind in ("remove", "discard"):
                kind = "remove" if tables.classes(connection, [number]) else "forget"
            _commit(connection, version, number, kind)

        self._database.run(work)

    def describe(self, change: Callable[[Contents], Described], network: Network) -> None:
        def work(connection: "Connection") -> None:
            self._locked(connection, network)
            model, _, contents = self._contents(connection)
            described = change(contents)
            decision = model.decision
            if described.decision is not None:
                decision = _put(connection, described.decision) if described.decision else None
            connection.execute(
                "UPDATE fscil_model SET about = %s, decision = %s",
                (json.dumps(described.about, allow_nan=False), decision),
            )
            connection.execute("DELETE FROM fscil_tensors WHERE sha256 NOT IN (%s, %s)", (model.weights, decision))
            _commit(connection, model.version + 1, None, "describe")

        self._database.run(work)

    @contextmanager
    def serving(self) -> Iterator[None]:
        yield  # any number of servers may

    @contextmanager
    def following(self, refresh: Callable[[], object]) -> Iterator[None]:
        """Calls it after each notification, every POLL_SECONDS, and as soon as a lost connection is back."""
        stop = threading.Event()
        self._last_contact = time.monotonic()
        thread = threading.Thread(target=self._follow, args=(refresh, stop), name="follow", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._last_contact = None

    def outdated(self) -> StoreError | None:
        if self._last_contact is None or time.monotonic() - self._last_contact <= MAX_OUTDATED_SECONDS:
            return None
        return UnavailableError(
            f"{self.place}: the database has not been reached for {MAX_OUTDATED_SECONDS:.0f} seconds, so the classes "
            f"known here may be out of date. Try again."
        )

    def close(self) -> None:
        self._database.close()

    # Inside

    def _follow(self, refresh: Callable[[], object], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self._database.listening(CHANNEL) as wait:
                    self._listen(wait, refresh, stop)
            except FscilError:  # what it says is said to whoever writes; see `outdated` for those who only read
                stop.wait(RETRY_SECONDS)
            except Exception:  # for instance no memory: without this thread the service would never be up to date again
                log.exception("%s: the gallery could not be read again", self.place)
                stop.wait(RETRY_SECONDS)

    def _listen(self, wait: Callable[[float], bool], refresh: Callable[[], object], stop: threading.Event) -> None:
        """Until it should stop, or a connection is lost, which is a StoreError."""
        notified = True  # of what happened before it listened
        while not stop.is_set():
            if notified or time.monotonic() - (self._last_contact or 0) >= POLL_SECONDS:
                refresh()
                self._last_contact = time.monotonic()
            notified = wait(WAKE_SECONDS)

    def _model(self, connection: "Connection", lock: str = "") -> _Model:
        query = f"SELECT layout, id, version, about, dim, network, decision FROM fscil_model {lock}"
        row = connection.execute(query).fetchone()
        if row is None:  # or the whole model was replaced while this waited for the lock of the old row
            row = connection.execute(query).fetchone()
        if row is None:
            raise no_model(self.place)
        if row[0] > tables.LAYOUT:
            raise StoreError(f"{self.place}: written by a newer fscil (layout {row[0]}). Upgrade fscil to read it.")
        return _Model(*row)

    def _locked(self, connection: "Connection", network: Network | None = None) -> _Model:
        """Other writers wait until the transaction ends."""
        model = self._model(connection, "FOR UPDATE")
        if network is not None and model.network != network:
            raise other_network(self.place)
        return model

    def _contents(self, connection: "Connection") -> tuple[_Model, list[tables.ClassRow], Contents]:
        model = self._model(connection)
        known = tables.classes(connection)
        weights, decision = (
            unpack_tensors(tables.tensors(connection, sha256), sha256, self.place) if sha256 else {}
            for sha256 in (model.weights, model.decision)
        )
        snapshot = tables.snapshot(connection, known, model.dim, model.keeps_negatives)
        return model, known, Contents(weights, model.about, snapshot, [], model.at, decision, model.network)

    def _records(
        self, connection: "Connection", changed: list[tables.ClassChange], since: int, model: _Model
    ) -> tuple[list[Record], dict[int, str | None]] | None:
        """What makes the gallery of a version the present one, and the names of the changed classes, None for one that
        is gone. None where a name has gone from one class to another.
        """
        numbers = [change.number for change in changed if change.number is not None]
        there = {row.number: row for row in tables.classes(connection, numbers)}
        photos = tables.photos_since(connection, "fscil_photo", numbers, since, model.dim)
        removed = [change.number for change in changed if change.removed and change.number in there]
        kept = tables.digests_until(connection, "fscil_photo", removed, since)
        gone = [number for number in numbers if number not in there]
        records: list[Record] = [{"do": "forget", "name": self._names[n]} for n in gone if n in self._names]
        renamed = {self._names[n]: row.name for n, row in there.items() if self._names.get(n, row.name) != row.name}
        if renamed and {*renamed.values()} & {*self._names.values()}:
            return None
        records += [{"do": "rename", "name": old, "to": new} for old, new in renamed.items()]
        for number, row in there.items():
            new = Gallery.record(row.name, photos.get(number, ()))
            if number in kept and number in self._names:
                records.append({**new, "do": "replace", "kept": kept[number]})
            else:
                records.append({**new, "origin": row.origin})
        if model.keeps_negatives:
            rejected = [there[c.number] for c in changed if c.negatives and c.number in there]
            records += _negatives(connection, rejected, since, model.dim)
        names: dict[int, str | None] = dict.fromkeys(gone)
        return records, names | {row.number: row.name for row in there.values()}


def _negatives(connection: "Connection", classes: Sequence[tables.ClassRow], since: int, dim: int) -> Iterator[Record]:
    """What makes the negative examples of these classes those of now."""
    numbers = [row.number for row in classes]
    kept = tables.digests_until(connection, "fscil_negative", numbers, since)
    photos = tables.photos_since(connection, "fscil_negative", numbers, since, dim)
    for row in classes:
        new = Gallery.record(row.name, photos.get(row.number, ()))
        yield {**new, "do": "replace_negatives", "kept": kept[row.number]}


def _exists(connection: "Connection") -> bool:
    (table,) = connection.execute("SELECT to_regclass('fscil_model')").fetchone() or (None,)
    return table is not None and connection.execute("SELECT 1 FROM fscil_model").fetchone() is not None


def _make_tables(connection: "Connection", place: str) -> None:
    """In the first schema of the search path, which is made too."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('fscil tables'))")  # IF NOT EXISTS alone is not atomic
    encoding, schema, path = connection.execute(
        "SELECT current_setting('server_encoding'), current_schema(), current_setting('search_path')"
    ).fetchone() or ("", None, "")
    if encoding != "UTF8":
        raise ConfigError(f"{place}: the encoding of the database is {encoding}. Names need one made with UTF8.")
    if schema is None:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {path.split(',')[0]}")  # an identifier, as the search path is
    connection.execute(tables.CREATE)


def _put(connection: "Connection", state: Mapping[str, Tensor]) -> str:
    content = pack_tensors(state)
    return tables.add_tensors(connection, hashlib.sha256(content).hexdigest(), content)


def _add_negatives(connection: "Connection") -> None:
    """The table that an older database lacks. Servers of older versions would answer without it, and cannot from now
    on.
    """
    connection.execute(tables.CREATE_NEGATIVES)
    connection.execute("UPDATE fscil_model SET layout = %s", (tables.LAYOUT,))


def _commit(connection: "Connection", version: int, number: int | None, kind: str) -> None:
    """Count the version up and tell the others, who hear of it when the transaction is committed."""
    connection.execute("UPDATE fscil_model SET version = %s", (version,))
    connection.execute("INSERT INTO fscil_change (version, class, kind) VALUES (%s, %s, %s)", (version, number, kind))
    connection.execute("DELETE FROM fscil_change WHERE version <= %s", (version - CHANGES_KEPT,))
    _notify(connection)


def _notify(connection: "Connection") -> None:
    connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))
