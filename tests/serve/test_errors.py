"""Error responses: their status and message, for keys, other sites, limits, invalid photos and names."""

import io
import socket
from contextlib import suppress
from urllib.parse import quote, urlsplit

import httpx
import pytest
from PIL import Image

from serving import ENROLL, READ, form, photo, process, tiny_classifier

LIMITS = {
    "max_request_bytes": 20_000,
    "max_photos_per_request": 3,
    "max_pixels_per_photo": 100 * 100,
    "max_concurrent_requests": 2,
    "max_queued_photos": 2,
}


def error(answer, status):
    """The message of an error response, after a check of its status and format."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    assert "Traceback" not in answer.text
    return answer.json()["error"]


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A server process with small limits."""
    model = tmp_path_factory.mktemp("limited") / "model"
    tiny_classifier().save(model)
    with process(model, limits=LIMITS) as server:
        yield server


# Photos


@pytest.mark.parametrize("path", ["/predict", "/classes/x"])
@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"plain text", 415, "photo1.png: not a JPEG, PNG, WEBP, BMP or GIF image"),
        (b"", 415, "photo1.png: not a JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "not a JPEG"),
        (photo(0, 0)[:200], 422, "photo1.png: corrupt or truncated"),
    ],
)
def test_an_error_names_the_invalid_photo_and_nothing_is_enrolled(client, path, content, status, message):
    assert message in error(client.post(path, files=form(photo(0, 0), content)), status)
    assert client.get("/classes").json()["total"] == 0


@pytest.mark.parametrize("path", ["/predict", "/classes/x"])
def test_no_photo(client, path):
    assert "No photo" in error(client.post(path, files={"other": (None, "text")}), 422)
    assert "no body" in error(client.post(path, headers={"content-type": "image/png"}), 422)
    assert "multipart" in error(client.post(path), 415)
    assert "multipart" in error(client.post(path, json={"files": []}), 415)
    broken = client.post(path, content=b"--x\r\nnonsense", headers={"content-type": "multipart/form-data; boundary=x"})
    error(broken, 422)
    error(client.post(path, content=b"", headers={"content-type": "multipart/form-data"}), 422)


def test_folders_and_control_characters_of_a_file_name_are_left_out(client):
    for sent, shown in (("../../etc/x.png", "x.png"), ("C:\\me\\y.png", "y.png"), ("a\u202eb.png", "a?b.png")):
        answer = client.post("/predict", files={"files": (sent, photo(0, 0), "image/png")})
        assert answer.json()["predictions"][0]["file"] == shown


# Names and numbers


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\tb", "a\r\nb", "a\x00b", "a\x1b[31m"])
def test_invalid_class_names(client, name):
    error(client.post(f"/classes/{quote(name, safe='')}", files=form(photo(0, 0))), 422)
    error(client.delete(f"/classes/{quote(name, safe='')}"), 422)


def test_a_class_name_that_is_not_utf8(client):
    assert "UTF-8" in error(client.post("/classes/%FF%FE", files=form(photo(0, 0))), 422)


def test_an_unknown_class(client):
    assert "no class" in error(client.delete("/classes/nobody"), 404)
    assert "no class" in error(client.get("/classes/nobody/thumbnail"), 404)


@pytest.mark.parametrize("query", ["top=0", "top=101", "top=x"])
def test_a_number_out_of_range(client, query):
    assert error(client.post(f"/predict?{query}", files=form(photo(0, 0))), 422).startswith("top: ")


def test_unknown_paths_and_methods(client):
    error(client.get("/nothing"), 404)
    error(client.get("/../serve/app.py"), 404)
    error(client.put("/predict"), 405)
    error(client.get("/redoc"), 404)


# Other sites


def test_a_host_after_dns_rebinding_is_rejected(client):
    assert "loopback" in error(client.get("/classes", headers={"host": "evil.example"}), 403)


def test_a_post_from_another_site_is_rejected(client):
    answer = client.post("/classes/x", files=form(photo(0, 0)), headers={"origin": "http://evil.example"})
    assert "other sites" in error(answer, 403)
    assert client.get("/classes").json()["total"] == 0
    assert "access-control-allow-origin" not in answer.headers


# Keys


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, bearer("wrong-0123456789abcdef"), {"x-api-key": READ[:-1]}])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/classes"), ("GET", "/metrics"), ("POST", "/predict"), ("DELETE", "/classes/x")]
)
def test_without_a_valid_key_every_route_is_401(keyed, headers, method, path):
    answer = keyed.request(method, path, headers=headers)
    assert "key" in error(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_public_paths_need_no_key(keyed):
    for path in ("/", "/app.js", "/photos.js", "/style.css", "/icon.svg", "/health", "/openapi.json"):
        assert keyed.get(path).status_code == 200


def test_a_read_key_allows_prediction_and_listing(keyed):
    assert keyed.post("/predict", files=form(photo(0, 0)), headers=bearer(READ)).status_code == 200
    assert keyed.get("/classes", headers={"x-api-key": READ}).json()["may_enroll"] is False
    assert "read key" in error(keyed.post("/classes/x", files=form(photo(0, 0)), headers=bearer(READ)), 403)
    assert "read key" in error(keyed.delete("/classes/x", headers=bearer(READ)), 403)


def test_an_enroll_key_allows_everything(keyed):
    assert keyed.post("/classes/x", files=form(photo(0, 0)), headers=bearer(ENROLL)).status_code == 200
    assert keyed.get("/classes", headers=bearer(ENROLL)).json()["may_enroll"] is True
    assert keyed.get("/classes/x/thumbnail", headers=bearer(READ)).status_code == 200
    assert keyed.get("/metrics", headers=bearer(READ)).status_code == 200
    assert keyed.delete("/classes/x", headers={"x-api-key": ENROLL}).status_code == 200


# Limits


def test_too_many_bytes_with_and_without_content_length(limited):
    large = b"x" * 30_000
    assert "larger than" in error(limited.client.post("/predict", files=form(large)), 413)
    pieces = (large[start : start + 1000] for start in range(0, len(large), 1000))
    answer = limited.client.post("/predict", content=pieces, headers={"content-type": "image/png"})
    assert answer.request.headers["transfer-encoding"] == "chunked"
    assert "larger than" in error(answer, 413)


def test_a_content_length_beyond_the_limit_is_rejected_before_the_body(limited):
    with StalledRequest(limited, length=30_000) as stalled:
        assert stalled.answer().startswith(b"HTTP/1.1 413 ")


def test_too_many_files(limited):
    for count in (4, 5, 40):
        assert "More than 3 photos" in error(limited.client.post("/predict", files=form(*[b"x"] * count)), 413)


def test_too_many_pixels(limited):
    def blank(width, height):
        file = io.BytesIO()
        Image.new("RGB", (width, height)).save(file, "PNG")
        return file.getvalue()

    assert limited.client.post("/predict", files=form(blank(100, 100))).status_code == 200
    assert "pixels" in error(limited.client.post("/predict", files=form(blank(101, 100))), 413)


def test_too_many_queued_photos(limited):
    answer = limited.client.post("/predict", files=form(photo(0, 0), photo(0, 1), photo(0, 2)))
    assert "queue" in error(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert limited.client.post("/predict", files=form(photo(0, 0), photo(0, 1))).status_code == 200


def test_too_many_concurrent_requests(limited):
    with StalledRequest(limited), StalledRequest(limited):
        while "fscil_in_flight 2.0" not in limited.client.get("/metrics").text:  # GET is not limited
            pass
        answer = limited.client.post("/predict", files=form(photo(0, 0)))
        assert "concurrent requests" in error(answer, 429)
        assert answer.headers["retry-after"] == "1"
        assert limited.client.get("/health").status_code == 200
    while "fscil_in_flight 0.0" not in limited.client.get("/metrics").text:  # the clients disconnected
        pass
    assert 'route="/predict",status="499"} 2.0' in limited.client.get("/metrics").text
    assert limited.client.post("/predict", files=form(photo(0, 0))).status_code == 200


def test_after_the_read_timeout_a_request_no_longer_counts(model):
    with process(model, limits={"max_concurrent_requests": 1, "read_timeout_seconds": 0.1}) as server:
        with StalledRequest(server) as stalled:
            assert stalled.answer().startswith(b"HTTP/1.1 408 ")
            assert server.client.post("/predict", files=form(photo(0, 0))).status_code == 200
        assert 'route="/predict",status="408"} 1.0' in server.client.get("/metrics").text


def test_the_size_of_request_headers_is_limited(limited):
    with suppress(httpx.TransportError):  # the service may close the connection before all is sent
        assert limited.client.get("/health", headers={"x-long": "x" * 2_000_000}).status_code == 400
    assert limited.client.get("/health").status_code == 200


class StalledRequest:
    """Headers of a request over a plain socket; its body is never sent."""

    def __init__(self, server, length=1000):
        place = urlsplit(server.url)
        self.socket = socket.create_connection((place.hostname, place.port), timeout=60)
        self.socket.sendall(
            f"POST /predict HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: image/png\r\n"
            f"Content-Length: {length}\r\n\r\n".encode()
        )

    def answer(self):
        return self.socket.recv(1000)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


# The cost of decoding


def slow_jpeg():
    """440 KB, minutes to decode: 8000 x 8000 pixels, and the last scan 2,000 times."""
    file = io.BytesIO()
    Image.new("RGB", (8000, 8000), (120, 30, 200)).save(file, "JPEG", progressive=True, quality=30)
    content = file.getvalue()
    return content[:-2] + content[content.rindex(b"\xff\xda") : -2] * 2000 + content[-2:]


@pytest.mark.parametrize("path", ["/predict", "/classes/x"])
def test_a_photo_of_many_scans(client, path):
    assert "scans" in error(client.post(path, files=form(photo(0, 0), slow_jpeg())), 413)


def test_a_photo_that_takes_too_long(model):
    file = io.BytesIO()
    Image.new("RGB", (8000, 8000)).save(file, "JPEG")
    with process(model, limits={"decode_cpu_seconds": 0.1}) as server:
        answers = [server.client.post("/predict", files=form(content)) for content in (file.getvalue(), photo(0, 0))]
    assert "photo0.png: takes more than 0.1 CPU-seconds" in error(answers[0], 413)
    assert answers[1].status_code == 200


# Requests that two programs may understand differently


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ("Origin: http://127.0.0.1\r\nOrigin: http://evil.example\r\n", b"more than one origin"),
        ("Host: evil.example\r\n", b""),
        ("X-API-Key: a\r\nX-API-Key: b\r\n", b"more than one x-api-key"),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"both Content-Length and Transfer-Encoding"),
        ("Content-Length: 3\r\nContent-Length: 4\r\n", b""),
    ],
)
def test_an_ambiguous_request_is_rejected(client, headers, message):
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=60) as made:
        made.sendall(f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n0\r\n\r\n".encode())
        answer = b""
        with suppress(ConnectionResetError):
            while piece := made.recv(65536):  # until the service closes the connection
                answer += piece
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert message in answer
