"""Start and stop the HTTP server.

The packages of the extra "serve" are imported inside the functions, so that the rest of fscil works without them.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fscil.errors import ConfigError
from fscil.runtime.extras import install_command
from fscil.runtime.text import count

if TYPE_CHECKING:
    import uvicorn

    from fscil.serve.keys import Keys
    from fscil.serve.limits import Limits
    from fscil.serve.service import Service
    from fscil.serve.tokens import Token

HOST, PORT = "127.0.0.1", 8000
BACKLOG = 2048  # connections that wait to be accepted
SHUTDOWN_SECONDS = 30  # that requests in flight get to finish


def run(
    model: Path | str,
    host: str = HOST,
    port: int = PORT,
    key_file: Path | None = None,
    device: str = "auto",
    limits: "Limits | None" = None,
    token: bool = True,
    keep_unknown: int | None = None,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then finish the requests in flight.

    Parameters
    ----------
    model
        A model folder, which no other process can change meanwhile; or the address of a database, postgresql://…, which
        any number of servers may serve.
    host, port
        Address to listen on. Port 0 takes any free one. Any host but a loopback one requires a key file.
    key_file
        A file with one `read KEY` or `enroll KEY` per line. Without it, only requests from this machine are accepted.
    device
        "auto", "cpu", "cuda", ...
    limits
        Sizes, counts and timeouts of requests (`fscil.serve.limits.Limits`).
    token
        Without a key file: whether requests need a random token, which is part of the address that is printed.
    keep_unknown
        Keep the photos that were unknown or maybe for review, at most so many; by default none. They are in the folder
        "review" of the model folder.
    say
        Called with the address, once connections are accepted.

    Raises
    ------
    ConfigError
        If the extra "serve" is not installed, the address cannot be used, the key file is missing or invalid, or
        photos cannot be kept because the model is in a database or read-only.
    StoreError
        If the model cannot be read, or another server uses it.

    Examples
    --------
    ::

        from pathlib import Path
        from fscil.serve import run

        run(Path("birds.fscil"), port=8000)  # prints an address to open in a browser
    """
    _require_packages()
    from fscil.serve.keys import Keys
    from fscil.serve.limits import Limits
    from fscil.serve.tokens import Token

    _require_key_file(host, key_file)
    keys = Keys.load(key_file) if key_file else None
    with listen(host, port) as listener, _open_service(model, device, limits or Limits(), keep_unknown) as service:
        secret = Token(listener.getsockname()[1]) if token and keys is None else None
        server = make_server(service, keys, secret)
        with _stop_on_signals(server):
            # The socket queues connections already; the event loop answers them a moment later.
            classes = count(service.class_count, "class", "classes")
            url = f"{_url(listener)}/?token={secret.value}" if secret else _url(listener)
            what = f"{classes}, read-only" if service.read_only else classes
            say(f"Serving {service.place} ({what}) at {url}  Press Ctrl-C to stop.")
            for line in _about_kept(service):
                say(line)
            server.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot listen on {host} port {port}: {reason}. Choose another --port, or 0.") from error
    # Accepted connections inherit it. asyncio does not set it on them, because the protocol number of this socket is 0,
    # and with Nagle's algorithm the body of a response waits for the client's delayed ACK of its headers, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def make_server(service: "Service", keys: "Keys | None", token: "Token | None" = None) -> "uvicorn.Server":
    """The HTTP server of a service. Set its `should_exit` to stop it."""
    import uvicorn

    from fscil.serve.app import make_app
    from fscil.serve.connections import LimitedProtocol, accepted_at_once

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listener in sockets or []:
                listener.listen(BACKLOG)  # asyncio has set it to what it accepts at once

    protocol = LimitedProtocol.of(service.limits)
    config = uvicorn.Config(
        make_app(service, keys, is_shutting_down=lambda: server.should_exit, token=token),
        http=protocol,  # based on h11, which limits the size of request headers; uvicorn's alternatives do not
        ws="none",
        backlog=accepted_at_once(protocol.max_connections),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = Server(config)
    return server


def _require_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"The service needs {error.name}. Run: {install_command('serve')}") from error


def _require_key_file(host: str, key_file: Path | None) -> None:
    from fscil.serve.auth import is_loopback
    from fscil.serve.keys import NEW_KEY_COMMAND

    if key_file is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} accepts requests from other machines and needs a key file: "
            f"{NEW_KEY_COMMAND} > keys.txt, then add --key keys.txt."
        )


@contextmanager
def _open_service(model: Path | str, device: str, limits: "Limits", keep_unknown: int | None) -> Iterator["Service"]:
    from fscil.classifier import StoredClassifier
    from fscil.runtime.allocator import tune_allocator
    from fscil.serve.review import open_review
    from fscil.serve.service import Service

    tune_allocator()
    # Where a folder cannot be written, there is no lock to take either.
    read_only = Path(model).is_dir() and not os.access(model, os.W_OK)
    with StoredClassifier.open(model, device=device, serving=not read_only) as stored:
        review = open_review(stored, model, keep_unknown, read_only)
        with closing(Service(stored, limits, read_only, review)) as service:
            yield service


def _about_kept(service: "Service") -> Iterator[str]:
    """What is kept where, and how to get rid of it."""
    review = service.review
    kept = count(review.total, "photo")
    if review.keeping:
        yield (
            f"Photos that it does not know are kept for review, at most {review.at_most}, in {review.folder} ({kept} "
            f"there now). Delete them on the page, or after stopping with: fscil review {service.place} --clear"
        )
        if not service.calibrated:
            yield "This model never says unknown, so nothing will be kept. Stop, and run: fscil upgrade MODEL"
    elif review.total:
        yield (
            f"{kept} of before in {review.folder} can be reviewed; further ones are not kept. Delete them: "
            f"fscil review {service.place} --clear"
        )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _stop_on_signals(server: "uvicorn.Server") -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the server, also before uvicorn handles them and when it raises them again at the end."""
    if threading.current_thread() is not threading.main_thread():  # signal handlers belong to the main thread
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
