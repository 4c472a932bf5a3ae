"""Decoding in other processes: the same results as here, and limits of CPU time, memory and pixels."""

import asyncio
import io
import resource

import numpy as np
import pytest
from PIL import Image

from fscil.data import photos
from fscil.data.images import Resize
from fscil.errors import BadImageError, HugeImageError, UnsupportedImageError
from fscil.serve.decoding import DecoderPool, PixelBudget
from fscil.serve.limits import MIB, Limits
from serving import photo


def blank(kind, width, height, **options):
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def pool(request):
    made = DecoderPool(Limits(**getattr(request, "param", {})), size=1)
    yield made
    made.close()


def children_cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_pixels_digest_and_thumbnail_are_those_of_this_process(pool):
    for size, resize in ((64, Resize(32)), (40, Resize()), (64, Resize((20, 30), "bicubic"))):
        content = photo(1, 0, size)
        expected = photos.load(content, resize)
        np.testing.assert_array_equal(pool.decode(content, resize).pixels, expected.pixels)
        kept = pool.decode(content, resize, keep=True)
        np.testing.assert_array_equal(kept.pixels, expected.pixels)
        assert (kept.digest, kept.thumbnail) == (expected.digest, expected.thumbnail)


@pytest.mark.parametrize("pool", [{"max_pixels_per_photo": 10_000}], indirect=True)
@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"text", UnsupportedImageError, "not a JPEG"),
        (photo(0, 0)[:200], BadImageError, "corrupt"),
        (blank("PNG", 101, 100), HugeImageError, "10000 pixels"),
    ],
)
def test_errors_are_those_of_this_process(pool, content, kind, message):
    with pytest.raises(BadImageError, match=message) as caught:
        pool.decode(content, Resize(32))
    assert caught.type is kind
    assert pool.decode(photo(0, 0), Resize(32)).pixels.shape == (32, 32, 3)  # with the same process


@pytest.mark.parametrize("pool", [{"decode_cpu_seconds": 0.1}], indirect=True)
def test_a_photo_beyond_the_cpu_limit_is_rejected_and_the_next_one_decoded(pool):
    slow = blank("JPEG", 8000, 8000)
    pool.decode(photo(0, 0), Resize(32))
    before = children_cpu_seconds()
    with pytest.raises(HugeImageError, match=r"0\.1 CPU-seconds"):
        pool.decode(slow, Resize(32))
    assert children_cpu_seconds() - before < 2  # the process and its start
    assert pool.decode(photo(0, 0), Resize(32)).pixels.shape == (32, 32, 3)


@pytest.mark.parametrize("pool", [{"decode_memory_bytes": 32 * MIB}], indirect=True)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_photo_beyond_the_memory_limit_is_rejected_and_the_next_one_decoded(pool, kind):
    with pytest.raises(HugeImageError, match="more than 32 MiB"):
        pool.decode(blank(kind, 4000, 4000), Resize(32))
    assert pool.decode(photo(0, 0), Resize(32)).pixels.shape == (32, 32, 3)


@pytest.mark.parametrize("pool", [{"decode_cpu_seconds": 60}], indirect=True)
def test_the_largest_photos_fit_the_default_memory_limit(pool):
    assert pool.decode(blank("JPEG", 8000, 8000), Resize(256)).pixels.shape == (256, 256, 3)
    assert pool.decode(blank("JPEG", 8000, 8000), Resize(256), keep=True).pixels.shape == (256, 256, 3)


def test_the_pixel_budget_is_never_exceeded_and_everybody_gets_a_turn():
    in_flight, most, done = 0, 0, []

    async def decode(budget, number, pixels):
        nonlocal in_flight, most
        async with budget.acquire(pixels):
            in_flight += min(pixels, 10)
            most = max(most, in_flight)
            await asyncio.sleep(0)
            in_flight -= min(pixels, 10)
            done.append(number)

    async def all_of_them():
        budget = PixelBudget(10)
        sizes = [3, 4, 10, 1, 25, 2, 10, 7, 3]
        await asyncio.gather(*(decode(budget, number, size) for number, size in enumerate(sizes)))
        return budget.in_use

    assert asyncio.run(all_of_them()) == 0
    assert most == 10
    assert sorted(done) == list(range(9))
    assert done.index(2) < done.index(3)  # a large photo is not overtaken for ever


def test_who_stops_waiting_for_the_pixel_budget_takes_nothing_of_it():
    async def scenario():
        budget, order = PixelBudget(10), []

        async def hold(name):
            async with budget.acquire(10):
                order.append(name)
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(hold(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.wait([tasks[2]])
        return order, budget.in_use

    assert asyncio.run(scenario()) == (["a", "c"], 0)
