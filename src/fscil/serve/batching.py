"""Concurrent requests share the network's time: one thread takes whatever has queued up, as one batch.

No timer holds a photo back: alone it goes through alone, and while a batch is at work the next one gathers.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Calls work(items) -> results, in one thread, with at most `largest` items at a time."""

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]], largest: int) -> None:
        self._work, self._largest = work, largest
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
        """Finish what is queued, and take no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            # A request that was given up needs no answer; from here on it cannot be cancelled.
            live = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
            if not live:
                continue
            try:
                answers = list(zip(live, self._work([item for item, _ in live]), strict=True))
            except Exception as error:
                for _, future in live:
                    future.set_exception(error)
            else:
                for (_, future), result in answers:
                    future.set_result(result)

    def _next(self) -> list[tuple[Item, "Future[Result]"]]:
        """What is queued, once there is something; nothing when closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._largest))]
