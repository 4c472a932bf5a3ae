"""A connection to PostgreSQL that comes back after it was lost, and its errors in words."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fscil.errors import ConfigError, StoreError, UnavailableError
from fscil.runtime.extras import install_command

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

T = TypeVar("T")

CONNECT_SECONDS = 5
# A peer that has vanished is noticed after 10 seconds, also while a query waits for it.
ALIVE = {"keepalives_idle": 4, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
LOCK_TIMEOUT = "20s"  # that a writer waits for another
SECRETS = ("password", "sslpassword")


def without_password(url: str) -> str:
    """What messages may show."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    query = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key not in SECRETS])
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + hosts, query=query))


class Database:
    """One connection, opened when it is needed. Several threads may use it, one at a time."""

    def __init__(self, url: str) -> None:
        self._psycopg = _require_psycopg()
        self._url, self.place = url, without_password(url)
        self._connection: Connection | None = None
        self._lock = threading.RLock()
        try:
            self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.Error as error:
            raise ConfigError(f"{self.place}: not the address of a database ({_reason(error)}).") from None

    def connect(self) -> "Connection":
        """A new connection, in which every statement is a transaction of its own."""
        try:
            options = {"connect_timeout": CONNECT_SECONDS, "client_encoding": "utf8", **ALIVE}
            connection: Connection = self._psycopg.connect(self._url, autocommit=True, **options)
            connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            (commit,) = connection.execute("SHOW synchronous_commit").fetchone() or ("",)
            if commit == "off":  # what is acknowledged must be on disk
                connection.execute("SET synchronous_commit = on")
        except self._psycopg.Error as error:
            raise self.explained(error) from error
        return connection

    @contextmanager
    def listening(self, channel: str) -> Iterator[Callable[[float], bool]]:
        """A function of a number of seconds: whether a notification comes within them. On a connection of its own."""
        connection = self.connect()

        def wait(seconds: float) -> bool:
            return any(True for _ in connection.notifies(timeout=seconds, stop_after=1))

        try:
            connection.execute(f"LISTEN {channel}")
            yield wait
        except self._psycopg.Error as error:
            raise self.explained(error) from error
        finally:
            connection.close()

    def run(self, work: Callable[["Connection"], T], read_only: bool = False) -> T:
        """Do some work in one transaction, which is committed when this returns. What the work raises undoes it.

        read_only: on one state of the database, whatever others write meanwhile. Work is done again where a connection
        turns out to have been lost before.
        """
        with self._lock:
            if self._connection is not None:
                try:
                    return self._attempt(self._connection, work, read_only)
                except _LostBefore:
                    pass
            self._connection = self.connect()
            try:
                return self._attempt(self._connection, work, read_only)
            except _LostBefore as error:
                raise self.explained(error.reason) from error.reason

    def _attempt(self, connection: "Connection", work: Callable[["Connection"], T], read_only: bool) -> T:
        done = False
        try:
            with connection.transaction():
                if read_only:
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                found = work(connection)
                done = True
            return found
        except self._psycopg.Error as error:
            if not connection.closed:
                raise self.explained(error) from error
            self._connection = None
            if not done:
                raise _LostBefore(error) from error
            raise UnavailableError(
                f"{self.place}: the connection was lost while the change was being committed, which may have happened "
                f"or not. Look, or do it again: the same photos count once."
            ) from error

    def explained(self, error: "psycopg.Error") -> StoreError:
        """As an error of fscil."""
        reason, errors = _reason(error), self._psycopg.errors
        if isinstance(error, errors.LockNotAvailable):
            return UnavailableError(f"{self.place}: another program has been writing for {LOCK_TIMEOUT}. Try again.")
        if isinstance(error, errors.DiskFull):
            return StoreError(f"{self.place}: the disk of the database is full ({reason}). Nothing was written.")
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return UnavailableError(f"{self.place}: the database accepts no changes for now ({reason}). Try again.")
        if isinstance(error, errors.UndefinedTable):
            return no_model(self.place)
        if isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError):
            return UnavailableError(f"{self.place}: the database cannot be reached ({reason}). Try again.")
        return StoreError(f"{self.place}: {reason}. Nothing was written.")

    def close(self) -> None:
        with self._lock, suppress(self._psycopg.Error):
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class _LostBefore(Exception):
    """A connection that was lost before anything was committed."""

    def __init__(self, reason: "psycopg.Error") -> None:
        self.reason = reason


def no_model(place: str) -> StoreError:
    return StoreError(f"{place} holds no model. Put one there with: fscil copy MODEL {place}")


def _reason(error: Exception) -> str:
    """Its first line, without the full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


def _require_psycopg() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.errors
    except ImportError as error:  # of libpq too
        raise ConfigError(
            f"A gallery in PostgreSQL needs psycopg ({_reason(error)}). Run: {install_command('postgres')}"
        ) from error
    return psycopg
