"""Start and shutdown: errors at the start, durability after kill -9, requests in flight at SIGTERM."""

import asyncio
import json
import signal
import socket
import sys
from urllib.parse import urlsplit

import httpx
import pytest

from fscil.classifier import Classifier, StoredClassifier
from fscil.errors import ConfigError, StoreError
from fscil.serve import run
from fscil.serve.app import make_app
from fscil.serve.limits import Limits
from fscil.serve.server import listen
from fscil.serve.service import Service
from serving import Server, form, photo, process, served, tiny_classifier


def test_other_addresses_need_a_key(model):
    for host in ("0.0.0.0", "::", "example.org", ""):
        with pytest.raises(ConfigError, match="key file"):
            run(model, host=host)


def test_a_missing_key_file_is_an_error(model, tmp_path):
    with pytest.raises(ConfigError, match="no such key file"):
        run(model, key_file=tmp_path / "none.txt")


def test_a_port_in_use(model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}.*--port"):
            run(model, port=port)


def test_small_responses_are_sent_without_delay():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_without_the_extra_it_says_how_to_get_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(ConfigError, match=r'pip install .*\[serve\]"$'):
        run(model)


def test_no_model_there(tmp_path):
    with pytest.raises(StoreError):
        run(tmp_path / "none", port=0)


def test_one_server_per_model(model):
    with served(model), pytest.raises(StoreError, match="server is using this model"):
        run(model, port=0)


def test_an_acknowledged_enrollment_survives_kill_9_and_no_other_process_enrolls_meanwhile(model):
    server = Server(model)
    for label in range(4):
        answer = server.client.post(f"/classes/class {label}", files=form(photo(label, 0), photo(label, 1)))
        assert answer.json()["added"] == 2
    assert server.client.delete("/classes/class 3").status_code == 200
    code, _ = server.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    with process(model) as again:  # the lock was released with the process, and is held again
        found = again.client.get("/classes").json()["classes"]
        assert {known["name"]: known["photos"] for known in found} == {f"class {label}": 2 for label in range(3)}
        (answer,) = again.client.post("/predict", files=form(photo(1, 0))).json()["predictions"]
        assert answer["label"] == "class 1"
        with StoredClassifier.open(model) as other, pytest.raises(StoreError, match="server is using this model"):
            other.enroll("class 1", [photo(1, 2)])
        assert again.client.post("/classes/class 1", files=form(photo(1, 2))).json()["photos"] == 3


def accepts_connections(place):
    try:
        socket.create_connection((place.hostname, place.port), timeout=60).close()
    except ConnectionResetError:  # the listener was closing
        return True
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_in_flight_finish_and_rejects_new_ones(model, number):
    server = Server(model)
    place = urlsplit(server.url)
    content = photo(1, 0)
    with socket.create_connection((place.hostname, place.port), timeout=60) as slow:
        slow.sendall(
            f"POST /classes/slow HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: image/png\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content[:100]
        )
        while "fscil_in_flight 1.0" not in server.client.get("/metrics").text:
            pass
        server.process.send_signal(number)
        while accepts_connections(place):
            pass
        slow.sendall(content[100:])
        answer = b""
        while piece := slow.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body) == {"name": "slow", "added": 1, "photos": 1, "warnings": []}
    server.client.close()
    output, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert (output, errors) == ("", "")
    assert [known.name for known in Classifier.load(model).classes()] == ["slow"]


def test_an_internal_error_is_logged(model, caplog, monkeypatch):
    def broken(*_):
        raise LookupError("a defect")

    monkeypatch.setattr(Classifier, "predict_features", broken)
    with served(model) as client:
        answer = client.post("/predict", files=form(photo(0, 0)))
        assert answer.status_code == 500
        assert answer.json() == {"error": "Internal server error. The log of the service has the details."}
        assert client.get("/health").status_code == 200
    (record,) = [record for record in caplog.records if record.name == "fscil.serve"]
    assert record.getMessage() == "POST '/predict' failed"
    assert isinstance(record.exc_info[1], LookupError)


def test_a_model_that_cannot_be_written_is_507_with_the_reason(model):
    size = max(path.stat().st_size for path in model.iterdir())
    with process(model, resources={"RLIMIT_FSIZE": size + 1}) as server:  # as on a full disk
        answers = [server.client.post(f"/classes/{number}", files=form(photo(number, 0))) for number in range(200)]
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 507}
        assert "cannot be written" in answers[statuses.index(507)].json()["error"]
        known = {each["name"] for each in server.client.get("/classes").json()["classes"]}
    acknowledged = {str(number) for number, status in enumerate(statuses) if status == 200}
    assert known == acknowledged == {each.name for each in Classifier.load(model).classes()}


def test_a_model_that_was_removed_is_507(model, caplog):
    with served(model) as client:
        (model / "model.json").unlink()
        answer = client.post("/classes/x", files=form(photo(0, 0)))
        assert answer.status_code == 507
        assert "is not a model" in answer.json()["error"]
    assert [record.exc_info for record in caplog.records if record.name == "fscil.serve"] == [None]


@pytest.mark.skipif(sys.platform != "linux", reason="root is made to respect permissions")
def test_a_read_only_model_is_served_read_only(tmp_path):
    model = tmp_path / "model"
    classifier = tiny_classifier()
    classifier.enroll("one", [photo(1, 0)])
    classifier.save(model)
    before = {path: path.read_bytes() for path in model.iterdir()}
    model.chmod(0o555)
    with process(model, unprivileged=True) as server:
        assert "read-only" in server.printed
        (found,) = server.client.post("/predict", files=form(photo(1, 1))).json()["predictions"]
        assert found["label"] == "one"
        assert server.client.get("/classes").json()["may_enroll"] is False
        enrolled = server.client.post("/classes/two", files=form(photo(2, 0)))
        for answer in (enrolled, server.client.delete("/classes/one")):
            assert answer.status_code == 403
            assert "read-only" in answer.json()["error"]
    assert {path: path.read_bytes() for path in model.iterdir()} == before
    model.chmod(0o755)


def test_requests_during_shutdown(model):
    async def ask():
        transport = httpx.ASGITransport(make_app(service, None, is_shutting_down=lambda: True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/health")

    with StoredClassifier.open(model) as stored:
        service = Service(stored, Limits())
        answer = asyncio.run(ask())
        service.close()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json() == {"error": "The service is shutting down."}
