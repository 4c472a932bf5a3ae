"""HTTP service and its web page: `run` serves a model folder until it is told to stop."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fscil.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from fscil.classifier import StoredClassifier
    from fscil.serve.limits import Limits

HOST, PORT = "127.0.0.1", 8000
PATIENCE = 30  # seconds that requests under way get when the service is told to stop


def run(
    model: Path,
    host: str = HOST,
    port: int = PORT,
    key_file: Path | None = None,
    device: str = "auto",
    limits: "Limits | None" = None,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then finish what is under way. Says the address when it is ready.

    Port 0 takes any free one. Any address but a loopback one needs a key file.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"The service needs {error.name}. Run: pip install 'fscil[serve]'") from error
    from PIL import Image

    from fscil.classifier import StoredClassifier
    from fscil.runtime.allocator import tune_allocator
    from fscil.serve.app import make_app
    from fscil.serve.auth import is_loopback
    from fscil.serve.keys import MAKE_ONE, Keys
    from fscil.serve.limits import Limits
    from fscil.serve.service import Service

    if key_file is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} lets others in, which needs a key file: {MAKE_ONE} > keys.txt, then add --key keys.txt. "
            f"Without --host the service is for this machine only."
        )
    keys = Keys.load(key_file) if key_file else None
    limits = limits or Limits()
    listener = _listen(host, port)
    tune_allocator()
    Image.MAX_IMAGE_PIXELS = limits.pixels  # of the whole process; the one decoder there is goes by it
    with listener, StoredClassifier.open(model, device=device, serving=True) as stored:
        service = Service(stored, limits)
        try:
            config = uvicorn.Config(
                make_app(service, keys, lambda: server.should_exit),
                http="h11",  # which bounds the head of a request; what else uvicorn might find installed does not
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=PATIENCE,
            )
            server = uvicorn.Server(config)
            with _ending(server):
                # The socket takes connections already; the loop answers them a moment later.
                say(f"Serving {model} ({_count(stored)}) at {_address(listener)}  Ctrl-C ends it.")
                server.run(sockets=[listener])
        finally:
            service.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot listen on {host} port {port}: {reason}. Choose another --port, or 0.") from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _count(stored: "StoredClassifier") -> str:
    classes = len(stored.classifier.classes())
    return "1 class" if classes == 1 else f"{classes} classes"


@contextmanager
def _ending(server: "uvicorn.Server") -> Iterator[None]:
    """SIGTERM and Ctrl-C end the server, also before uvicorn listens to them and when it repeats them at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
