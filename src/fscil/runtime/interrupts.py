"""Deferred Ctrl-C: long work checks whether to stop at points where stopping does no harm."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event, so that a step is never cut in half; a second one interrupts at once."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return
    watched = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in watched}

    def request_stop(number: int, frame: Any) -> None:
        requested.set()
        signal.signal(number, signal.default_int_handler)

    for number in watched:
        signal.signal(number, request_stop)
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
