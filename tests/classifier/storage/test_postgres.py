"""What only a database can do: many writers at once, lost connections, galleries beside each other."""

import os
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
import torch

from databases import disconnect, execute, unreachable
from fscil.classifier import StoredClassifier
from fscil.classifier.storage import postgres as postgres_storage
from fscil.classifier.storage import storage_at
from fscil.classifier.storage.contents import gallery_of
from fscil.errors import ConfigError, StoreError, UnavailableError, UnknownClassError
from fscil.gallery import Gallery, Photo
from helpers import picture
from serving import tiny_classifier

DIM = 4
ABOUT = {"network": {}, "calibration": None, "made": {}}


def photo(number):
    return Photo(f"digest-{number}", torch.full((DIM,), float(number)), f"secret-{number}.jpg", "2026-01-01", b"jpeg")


def create(url, classes=()):
    storage, gallery = storage_at(url), Gallery(DIM)
    for name in classes:
        gallery.enroll(name, [photo(0), photo(1)])
    storage.create({"w": torch.ones(2)}, ABOUT, gallery.snapshot())
    return storage, storage.read().network


def test_writers_at_once_lose_nothing(database):
    """Eight connections, some of them adding the same photos to the same class."""
    storage, network = create(database)
    failed = []

    def work(number):
        mine = storage_at(database)
        try:
            for step in range(8):
                mine.write(Gallery.record("shared", [photo(step), photo(100 * number + step)]), network)
                mine.write(Gallery.record(f"own {number}", [photo(step)]), network)
        except Exception as error:
            failed.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=work, args=[number]) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found = gallery_of(storage.read())
    assert found.info("shared").photos == 8 + 8 * 8
    assert {*found.names} == {"shared", *(f"own {number}" for number in range(1, 9))}
    assert all(found.info(f"own {number}").photos == 8 for number in range(1, 9))
    assert storage.version()[1] == 1 + 8 * 8 * 2
    storage.close()


def test_a_writer_waits_for_whoever_replaces_the_model(database, postgres):
    storage, network = create(database, ["ant"])
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(database) as replacing:
        replacing.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM fscil_model")
        replacing.execute("DELETE FROM fscil_model")
        replacing.execute("INSERT INTO fscil_model SELECT * FROM kept")
        writer = threading.Thread(target=storage.write, args=[Gallery.record("bee", [photo(3)]), network])
        writer.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
        while execute(postgres, waiting, urlsplit(database).path.removeprefix("/")) == [(0,)]:
            pass
        replacing.commit()
        writer.join()
    assert gallery_of(storage.read()).names == ("ant", "bee")
    storage.close()


def test_forgetting_leaves_no_row(database):
    storage, network = create(database, ["private", "other"])
    storage.write(Gallery.record("private", [photo(7)]), network)
    storage.write(Gallery.record("private", [photo(8)], "reject"), network)
    storage.write({"do": "rename", "name": "private", "to": "very private"}, network)
    storage.write({"do": "forget", "name": "very private"}, network)
    for table in ("model", "tensors", "class", "photo", "negative", "change"):
        rows = execute(database, f"SELECT t::text FROM fscil_{table} t")
        words = ("private", "secret-7", "digest-7", "secret-8", "digest-8")
        assert not [row for (row,) in rows if any(word in row for word in words)]
    assert execute(database, "SELECT count(*) FROM fscil_negative") == [(0,)]
    assert execute(database, "SELECT count(*) FROM fscil_photo") == [(2,)]
    storage.close()


def test_a_connection_that_was_lost_is_made_again(database, postgres):
    storage, network = create(database, ["ant"])
    for _ in range(2):
        disconnect(postgres, database)
        storage.write(Gallery.record("bee", [photo(3)]), network)
        disconnect(postgres, database)
        assert gallery_of(storage.read()).names == ("ant", "bee")
    with unreachable(postgres, database):
        for action in (storage.read, storage.version, lambda: storage.write({"do": "forget", "name": "ant"}, network)):
            with pytest.raises(UnavailableError, match="cannot be reached"):
                action()
    storage.write({"do": "forget", "name": "ant"}, network)
    assert gallery_of(storage.read()).names == ("bee",)
    storage.close()


def test_a_writer_that_died_holds_up_nobody(database, postgres):
    """Killed after its rows were written and before they were committed."""
    storage, network = create(database, ["ant"])
    program = (
        "import sys, psycopg\n"
        "connection = psycopg.connect(sys.argv[1])\n"
        "connection.execute('SELECT version FROM fscil_model FOR UPDATE')\n"
        "connection.execute('DELETE FROM fscil_class')\n"
        "print('half', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        os.kill(process.pid, signal.SIGKILL)
    storage.write(Gallery.record("bee", [photo(3)]), network)
    assert gallery_of(storage.read()).names == ("ant", "bee")
    storage.close()


def test_whoever_is_far_behind_reads_everything_anew(database, monkeypatch):
    monkeypatch.setattr(postgres_storage, "CHANGES_KEPT", 3)
    storage, network = create(database)
    other = storage_at(database)
    version = other.read().version
    for number in range(3):
        storage.write(Gallery.record(f"class {number}", [photo(number)]), network)
    changes = other.changes_since(version)
    assert len(changes.records) == 3
    for number in range(3, 7):
        storage.write(Gallery.record(f"class {number}", [photo(number)]), network)
    assert other.changes_since(changes.version) is None
    assert len(gallery_of(other.read())) == 7
    assert execute(database, "SELECT count(*) FROM fscil_change") == [(3,)]
    storage.close()
    other.close()


def test_names_that_change_places(database):
    """Read at once: two classes exchange their names."""
    storage, network = create(database, ["ant", "bee"])
    other = storage_at(database)
    version = other.read().version
    for old, new in (("ant", "x"), ("bee", "ant"), ("x", "bee")):
        storage.write({"do": "rename", "name": old, "to": new}, network)
    assert other.changes_since(version) is None
    assert gallery_of(other.read()).names == ("bee", "ant")
    storage.close()
    other.close()


def test_a_gallery_per_schema(database):
    first, second = (f"{database}&options=-csearch_path%3D{name}" for name in ("birds", "Fish"))
    (one, _), (two, _) = create(first, ["robin"]), create(second, ["eel"])
    assert gallery_of(one.read()).names == ("robin",)
    assert gallery_of(two.read()).names == ("eel",)
    with pytest.raises(StoreError, match="holds no model"):
        storage_at(database).read()
    one.close()
    two.close()


def test_databases_that_cannot_hold_a_gallery(postgres, database):
    execute(postgres, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ConfigError, match="encoding of the database is SQL_ASCII"):
        create(postgres.replace("/postgres?", "/ascii?"))
    storage, _ = create(database, ["ant"])
    execute(database, "UPDATE fscil_photo SET feature = 'abc'")
    with pytest.raises(StoreError, match="has not 4 numbers"):
        storage.read()
    execute(database, "UPDATE fscil_model SET layout = 99")
    with pytest.raises(StoreError, match="Upgrade fscil"):
        storage.read()
    execute(database, "UPDATE fscil_model SET layout = 1")
    execute(database, "UPDATE fscil_tensors SET content = content || 'x'")
    with pytest.raises(StoreError, match="checksum is wrong"):
        storage.read()
    storage.close()


def test_a_database_of_before_negative_examples(database):
    """It is read and written as it is, and gets their table with the first."""
    storage, network = create(database, ["ant"])
    execute(database, "DROP TABLE fscil_negative")
    execute(database, "UPDATE fscil_model SET layout = 1")
    other = storage_at(database)
    version = other.read().version
    storage.write(Gallery.record("bee", [photo(3)]), network)
    with pytest.raises(UnknownClassError, match="no negative example"):
        storage.write({"do": "remove_negative", "name": "bee", "digest": "digest-3"}, network)
    changes = other.changes_since(version)
    assert [record["do"] for record in changes.records] == ["enroll"]
    assert execute(database, "SELECT layout FROM fscil_model") == [(1,)]

    storage.write(Gallery.record("bee", [photo(5)], "reject"), network)
    gallery = gallery_of(other.read())
    assert [each.source for each in gallery.negatives("bee")] == ["secret-5.jpg"]
    assert other.changes_since(changes.version) is None  # of the version read before
    assert execute(database, "SELECT layout FROM fscil_model") == [(2,)]
    storage.close()
    other.close()


def test_negative_examples_reach_other_servers_by_notification(database, monkeypatch):
    monkeypatch.setattr(postgres_storage, "POLL_SECONDS", 1e9)
    made = tiny_classifier()
    made.enroll("ant", [picture(0, 0)])
    made.enroll("bee", [picture(1, 0)])
    made.save(database)
    heard = threading.Event()
    with StoredClassifier.open(database) as mine, StoredClassifier.open(database) as yours:

        def refresh():
            if yours.refresh():
                heard.set()

        with yours.storage.following(refresh):
            assert mine.reject("ant", picture(0, 1)) == 1
            assert heard.wait(60)
            assert [each.digest for each in yours.classifier.gallery.negatives("ant")] == [
                each.digest for each in mine.classifier.gallery.negatives("ant")
            ]
            assert yours.classifier.predict(picture(0, 1))[0].label != "ant"
            heard.clear()
            mine.remove_negative("ant", mine.classifier.gallery.negatives("ant")[0].digest)
            assert heard.wait(60)
            assert yours.classifier.gallery.negatives("ant") == ()
            assert yours.classifier.predict(picture(0, 1))[0].label == "ant"


def test_a_server_follows_again_after_any_error(database, monkeypatch, caplog):
    monkeypatch.setattr(postgres_storage, "RETRY_SECONDS", 0.01)
    made = tiny_classifier()
    made.enroll("ant", [picture(0, 0)])
    made.save(database)
    again = threading.Event()
    errors = iter([MemoryError("no room"), ValueError("a defect")])

    def refresh():
        for error in errors:
            raise error
        again.set()

    with StoredClassifier.open(database) as mine, mine.storage.following(refresh):
        assert again.wait(60)
        assert mine.storage.outdated() is None
    assert [str(record.exc_info[1]) for record in caplog.records] == ["no room", "a defect"]


def test_a_server_says_when_it_is_out_of_date(database, postgres, monkeypatch):
    made = tiny_classifier()
    made.enroll("ant", [picture(0, 0)])
    made.save(database)
    with StoredClassifier.open(database, serving=True) as mine:
        mine.require_current()
        monkeypatch.setattr(postgres_storage, "MAX_OUTDATED_SECONDS", 0.0)
        with unreachable(postgres, database):
            error = None
            while error is None:  # the last contact may have been this very moment
                error = mine.storage.outdated()
            assert isinstance(error, UnavailableError)
            with pytest.raises(UnavailableError, match="out of date"):
                mine.require_current()
        monkeypatch.setattr(postgres_storage, "MAX_OUTDATED_SECONDS", 60.0)
        mine.require_current()
    assert mine.storage.outdated() is None  # where nobody follows, everything is read when it is asked for
