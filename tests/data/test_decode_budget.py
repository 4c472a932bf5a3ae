"""How much memory threads may take together to decode photos."""

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from fscil.data.decode_budget import DecodeBudget, decode_cost
from fscil.data.upright import MAX_DECODE_BYTES


def encoded(size, kind="JPEG", **options):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, kind, **options)
    return file.getvalue()


def test_never_more_at_once_than_the_budget():
    budget, in_use, most, lock = DecodeBudget(100), 0, 0, threading.Lock()

    def work(cost):
        nonlocal in_use, most
        with budget.acquire(cost):
            with lock:
                in_use += min(cost, 100)
                most = max(most, in_use)
            with lock:
                in_use -= min(cost, 100)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [30, 60, 5, 1000, 0, 45, 99] * 200))
    assert most <= 100
    with budget.acquire(100):  # all was given back
        pass


def test_those_that_fit_are_decoded_together():
    budget, together = DecodeBudget(100), threading.Barrier(2, timeout=30)

    def work(_):
        with budget.acquire(50):
            together.wait()  # only both at once pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, "ab"))


def test_an_error_gives_back_what_was_taken():
    budget = DecodeBudget(10)
    with pytest.raises(ZeroDivisionError), budget.acquire(10):
        raise ZeroDivisionError
    with budget.acquire(10):
        pass


def test_the_cost_is_that_of_the_header(tmp_path):
    (tmp_path / "a.jpg").write_bytes(encoded((300, 200)))
    small = decode_cost(tmp_path / "a.jpg")
    assert small == decode_cost(str(tmp_path / "a.jpg")) == decode_cost(encoded((300, 200)))
    assert decode_cost(encoded((3000, 2000))) - small == 4 * (3000 * 2000 - 300 * 200)
    assert decode_cost(encoded((3000, 2000), progressive=True)) > decode_cost(encoded((3000, 2000)))
    assert decode_cost(b"\0\0\0\x18ftypheic" + bytes(100)) == MAX_DECODE_BYTES


def test_what_is_in_memory_or_no_photo_costs_nothing_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    nothing = [np.zeros((4, 4, 3), np.uint8), Image.new("RGB", (4, 4)), tmp_path / "none.jpg", tmp_path / "pipe.jpg"]
    assert [decode_cost(source) for source in nothing] == [0] * 4
