"""The process that decodes photos, so that one that takes too long or crashes the decoder harms no other request.

It reads requests from standard input and writes responses to standard output until standard input is closed. A message
is a JSON object, which has the sizes of the parts that follow it, and these parts. Started by `fscil.serve.decoding`.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from fscil.data import photos
from fscil.data.image_headers import image_size
from fscil.data.images import Resize
from fscil.errors import BadImageError

LENGTH_BYTES = 4
COPIES = 12  # bytes that a decoder may need per pixel


def send(stream: BinaryIO, header: dict[str, Any], *parts: bytes | memoryview) -> None:
    line = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    stream.write(len(line).to_bytes(LENGTH_BYTES, "big") + line)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Raises EOFError if the other side has gone."""
    header = json.loads(_read(stream, int.from_bytes(_read(stream, LENGTH_BYTES), "big")))
    return header, [_read(stream, size) for size in header["sizes"]]


def _read(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def main(max_pixels: int, cpu_seconds: float, memory_bytes: int) -> None:
    requests, responses = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the responses
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the service still finishes its requests
    Image.MAX_IMAGE_PIXELS = max_pixels
    Image.init()  # loads the plugins before the limits apply
    _limit_memory(memory_bytes)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            header, (content,) = receive(requests)
            _limit_cpu(cpu_seconds)
            _respond(responses, header, content, memory_bytes)
            _limit_cpu(0)


def _respond(responses: BinaryIO, header: dict[str, Any], content: bytes, memory_bytes: int) -> None:
    size = header["resize"]["size"]
    resize = Resize(tuple(size) if isinstance(size, list) else size, header["resize"]["interpolation"])
    try:
        if header["keep"]:
            loaded = photos.load(content, resize)
            pixels, digest, thumbnail = loaded.pixels, loaded.digest, loaded.thumbnail
        else:
            pixels, digest, thumbnail = photos.pixels(content, resize), "", b""
    except (BadImageError, MemoryError) as error:
        send(responses, _described(error, content, memory_bytes))
    else:
        send(responses, {"shape": pixels.shape, "digest": digest}, pixels.tobytes(), thumbnail)


def _described(error: Exception, content: bytes, memory_bytes: int) -> dict[str, str]:
    too_much = f"needs more than {memory_bytes / 2**20:.0f} MiB to decode"
    if MemoryError in (type(error), type(error.__cause__)):
        return {"error": "HugeImageError", "message": too_much}
    height, width = image_size(content) or (0, 0)
    if type(error) is BadImageError and height * width * COPIES > memory_bytes:
        # Some decoders do not say why they failed.
        return {"error": "HugeImageError", "message": f"corrupt, or {too_much}"}
    return {"error": type(error).__name__, "message": str(error)}


def _limit_cpu(seconds: float) -> None:
    """The kernel ends this process once it has computed for so long, also inside a decoder; 0: no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(extra_bytes: int) -> None:
    """So much more than is in use now; beyond that, allocations fail."""
    try:
        import resource

        status = Path("/proc/self/status").read_text(encoding="ascii")
        used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    except (ImportError, OSError, StopIteration):
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the photo
    resource.setrlimit(resource.RLIMIT_DATA, (used + extra_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
