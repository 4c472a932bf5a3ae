"""The batcher: every item gets its own result, a batch is what is queued, and close() finishes the work."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fscil.serve.batching import Batcher


def test_every_item_gets_its_own_result():
    batcher = Batcher(lambda items: [item * item for item in items], max_batch_size=7)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda item: batcher.submit(item).result(), range(500)))
    batcher.close()
    assert found == [item * item for item in range(500)]


class BlockedFunction:
    """Waits in its first batch until `go` is set, and records the batches."""

    def __init__(self):
        self.begun, self.go, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, items):
        self.batches.append(list(items))
        self.begun.set()
        assert self.go.wait(30)
        return items


def test_what_is_queued_while_a_batch_runs_is_the_next_batch():
    work = BlockedFunction()
    batcher = Batcher(work, max_batch_size=4)
    futures = [batcher.submit(0)]
    assert work.begun.wait(30)
    futures += [batcher.submit(item) for item in range(1, 10)]
    work.go.set()
    assert [future.result(30) for future in futures] == list(range(10))
    batcher.close()
    assert work.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_an_error_is_raised_for_its_batch_only():
    def work(items):
        if "bad" in items:
            raise ValueError("cannot do it")
        return items

    batcher = Batcher(work, max_batch_size=1)
    bad, good = batcher.submit("bad"), batcher.submit("good")
    with pytest.raises(ValueError, match="cannot do it"):
        bad.result(30)
    assert good.result(30) == "good"
    batcher.close()


def test_too_few_results_are_an_error_instead_of_a_deadlock():
    batcher = Batcher(lambda items: [], max_batch_size=4)
    with pytest.raises(ValueError, match="shorter"):
        batcher.submit(1).result(30)
    batcher.close()


def test_cancelled_items_are_left_out():
    work = BlockedFunction()
    batcher = Batcher(work, max_batch_size=4)
    first, second, third = batcher.submit(1), None, None
    assert work.begun.wait(30)
    second, third = batcher.submit(2), batcher.submit(3)
    assert second.cancel()
    work.go.set()
    assert (first.result(30), third.result(30)) == (1, 3)
    batcher.close()
    assert work.batches == [[1], [3]]


def test_close_finishes_what_is_queued_and_accepts_no_more():
    work = BlockedFunction()
    batcher = Batcher(work, max_batch_size=2)
    futures = [batcher.submit(item) for item in range(5)]
    assert work.begun.wait(30)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    work.go.set()
    closing.join(30)
    assert [future.result(0) for future in futures] == list(range(5))
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(5)
