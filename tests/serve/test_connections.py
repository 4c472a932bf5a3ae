"""Clients that stall: incomplete request headers, slow bodies, too many connections, responses that nobody reads."""

import json
import select
import socket
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx

from fscil.classifier import StoredClassifier
from serving import form, photo, process, served

HALF_A_HEADER = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


def address(server):
    place = urlsplit(str(getattr(server, "url", None) or server.base_url))
    return place.hostname, place.port


@contextmanager
def connection(server, start=b""):
    with socket.create_connection(address(server), timeout=60) as made:
        made.sendall(start)
        yield made


def everything(made):
    """What the service sends until it closes the connection."""
    received = b""
    try:
        while piece := made.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_half_open_requests_do_not_stop_the_service_at_200_open_files(model):
    with process(model, resources={"RLIMIT_NOFILE": 200}) as server, ExitStack() as stack:
        for _ in range(260):
            stack.enter_context(connection(server, HALF_A_HEADER))
        for _ in range(3):
            assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
        assert server.client.post("/predict", files=form(photo(0, 0))).status_code == 200


def test_a_header_must_be_complete_in_time(model):
    with served(model, header_timeout_seconds=0.3) as server:
        with connection(server, HALF_A_HEADER) as made:
            head, _, body = everything(made).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            assert "header" in json.loads(body)["error"]
        with connection(server) as silent:
            assert everything(silent) == b""


def test_a_header_that_trickles_is_not_waited_for(model):
    with served(model, header_timeout_seconds=0.3) as server, connection(server, HALF_A_HEADER) as made:
        made.settimeout(0.02)
        end = time.monotonic() + 30
        closed = False
        while not closed and time.monotonic() < end:
            try:
                made.sendall(b"x")
                closed = made.recv(1000) != b"waiting"
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed


def test_the_header_of_a_second_request_must_be_complete_in_time_too(model):
    with served(model, header_timeout_seconds=0.3) as server, connection(server) as made:
        made.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert made.recv(65536).startswith(b"HTTP/1.1 200 ")
        made.sendall(HALF_A_HEADER)
        assert b"HTTP/1.1 408 " in everything(made)


def test_a_body_must_be_complete_in_time(model):
    with served(model, body_timeout_seconds=0.4, max_concurrent_requests=1) as server:
        start = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        with connection(server, f"{start}Content-Length: 100000\r\n\r\n".encode()) as made:
            made.settimeout(0.02)
            end, answer = time.monotonic() + 30, b""
            while not answer and time.monotonic() < end:
                made.sendall(b"x")  # never 30 seconds without data
                try:
                    answer = made.recv(65536)
                except TimeoutError:
                    continue
            made.settimeout(30)
            while answer.endswith(b"\r\n\r\n"):  # the header alone
                answer += made.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"0.4 seconds" in answer
        assert server.post("/predict", files=form(photo(0, 0))).status_code == 200


def test_beyond_the_limit_the_connection_that_waits_longest_is_closed(model):
    with (
        served(model, max_connections=3) as server,
        connection(server, HALF_A_HEADER) as first,
        connection(server, HALF_A_HEADER) as second,
        connection(server) as third,
        connection(server) as fourth,
    ):
        assert everything(first) == b""
        for made in (third, fourth):
            made.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert everything(made).startswith(b"HTTP/1.1 200 ")
        second.sendall(b"x\r\nConnection: close\r\n\r\n")
        assert everything(second).startswith(b"HTTP/1.1 200 ")


def test_beyond_the_limit_requests_in_progress_are_not_ended(model):
    content = photo(0, 0)
    with served(model, max_connections=1) as server:
        start = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        begin = f"{start}Expect: 100-continue\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        with connection(server, begin) as busy:
            assert busy.recv(1000).startswith(b"HTTP/1.1 100 ")  # the request has begun
            with connection(server) as other:
                assert everything(other).startswith(b"HTTP/1.1 503 ")
            busy.sendall(content)
            assert everything(busy).startswith(b"HTTP/1.1 200 ")


def test_a_response_that_is_not_read(model):
    with StoredClassifier.open(model) as stored:
        (one,) = stored.classifier.photos([photo(1, 0)])
        for number in range(200):
            stored.enroll_photos(f"{number} {'x' * 180}", [replace(one, digest=str(number))])
    with served(model, read_timeout_seconds=0.3) as server, socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        made.connect(address(server))
        made.sendall(b"GET /classes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)  # about 20 MB
        ended = select.poll()
        ended.register(made, 0)  # not for data: only for the end of the connection
        assert ended.poll(60_000)
        assert server.get("/health").status_code == 200
