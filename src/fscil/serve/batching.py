"""Dynamic batching: one thread runs everything that is queued as one batch, so that concurrent requests share it.

There is no timer: a photo that is alone is run at once, and what arrives while a batch runs forms the next one.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Calls function(items) -> results in one thread, with at most `max_batch_size` items at a time."""

    def __init__(self, function: Callable[[list[Item]], Sequence[Result]], max_batch_size: int) -> None:
        self._function, self._max_batch_size = function, max_batch_size
        self._queue: deque[tuple[Item, Future[Result]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> "Future[Result]":
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._queue.append((item, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Finish what is queued, and accept no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            # Without the cancelled ones; from here on the others cannot be cancelled.
            running = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
            if not running:
                continue
            try:
                results = list(zip(running, self._function([item for item, _ in running]), strict=True))
            except Exception as error:
                for _, future in running:
                    future.set_exception(error)
            else:
                for (_, future), result in results:
                    future.set_result(result)

    def _next_batch(self) -> list[tuple[Item, "Future[Result]"]]:
        """Waits for at least one item; empty once closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._max_batch_size))]
