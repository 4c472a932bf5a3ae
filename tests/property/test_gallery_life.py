"""Whatever is done to a gallery, in whatever order and with whatever interruptions, only the photos count."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fscil.classifier.model_folder import ModelFolder
from fscil.gallery import Gallery, Photo, apply_record

DIM = 6
NAMES = st.sampled_from(["ant", "bee", "cat", "鹿"])
DIGESTS = st.integers(0, 12)


def photo(number):
    """Photo number n always looks the same; some are much longer than others."""
    random = np.random.default_rng(number)
    feature = torch.from_numpy(random.normal(size=DIM) * 10.0 ** (number % 4)).float()
    return Photo(f"{number:02d}", feature, f"{number}.jpg", f"2024-01-{number + 1:02d}T00:00:00Z", bytes([number]))


def mean_direction(numbers):
    mean = np.mean([photo(number).feature.double().numpy() for number in sorted(numbers)], axis=0)
    return mean / np.linalg.norm(mean)


def digests(gallery):
    return {name: sorted(each.digest for each in gallery.photos(name)) for name in gallery.names}


def assert_same(left, right):
    """To the bit."""
    one, two = left.snapshot(), right.snapshot()
    for key in one:
        assert torch.equal(one[key], two[key]), key
    assert torch.equal(left.prototypes, right.prototypes)


enrollments = st.lists(st.tuples(NAMES, st.lists(DIGESTS, min_size=1, max_size=4)), max_size=12)


def enrolled(steps, origin="enrolled"):
    gallery = Gallery(DIM)
    for name, numbers in steps:
        gallery.enroll(name, [photo(number) for number in numbers], origin)
    return gallery


@given(enrollments, st.randoms(use_true_random=False), st.integers(1, 5))
def test_order_and_grouping_do_not_matter(steps, random, size):
    """The same pairs of class and photo, shuffled and dealt out anew, some of them twice."""
    one = enrolled(steps)
    pairs = [(name, number) for name, numbers in steps for number in numbers]
    shuffled = pairs + random.sample(pairs, len(pairs) // 2)
    random.shuffle(shuffled)
    grouped = []
    for start in range(0, len(shuffled), size):
        part = shuffled[start : start + size]
        grouped += [(name, [number for other, number in part if other == name]) for name in dict(part)]
    two = enrolled(grouped)
    assert digests(one) == digests(two)
    for name in one.names:
        left, right = one.prototypes[one.names.index(name)], two.prototypes[two.names.index(name)]
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)
        assert (one.info(name).added, one.info(name).changed) == (two.info(name).added, two.info(name).changed)


@given(enrollments, st.lists(DIGESTS, min_size=1), st.sampled_from(["base", "enrolled"]))
def test_enroll_then_forget_is_the_identity(steps, numbers, origin):
    gallery, untouched = enrolled(steps, origin), enrolled(steps, origin)
    gallery.enroll("a passing guest", [photo(number) for number in numbers])
    gallery.forget("a passing guest")
    assert_same(gallery, untouched)


@given(enrollments, st.data())
def test_records_in_any_order_and_any_number(steps, data):
    records = [json.dumps(Gallery.record(name, [photo(number) for number in numbers])) for name, numbers in steps]
    order = data.draw(st.permutations(records + data.draw(st.lists(st.sampled_from(records))) if records else []))
    gallery = Gallery(DIM)
    for record in order:
        apply_record(gallery, json.loads(record))
    assert digests(gallery) == digests(enrolled(steps))


@settings(max_examples=25)
@given(enrollments, enrollments, enrollments)
def test_replaying_a_journal_is_not_having_stopped(before, after, later):
    """A model on disk: some classes in its snapshot, some in its journal, some learned after it was read back."""
    whole = enrolled(before + after + later)
    with tempfile.TemporaryDirectory() as place:
        folder = ModelFolder(Path(place) / "model")
        folder.create({}, {}, enrolled(before).snapshot())
        for name, numbers in after:
            folder.append(Gallery.record(name, [photo(number) for number in numbers]))
        contents = ModelFolder(Path(place) / "model").read()
    gallery = Gallery.from_snapshot(contents.snapshot)
    for record in contents.records:
        apply_record(gallery, record)
    for name, numbers in later:
        gallery.enroll(name, [photo(number) for number in numbers])
    assert_same(gallery, whole)


class Life(RuleBasedStateMachine):
    """A gallery that is stopped and started now and then, beside one that is not, and a plain dictionary."""

    @initialize()
    def begin(self):
        self.steady, self.interrupted, self.plain = Gallery(DIM), Gallery(DIM), {}

    @rule(name=NAMES, numbers=st.lists(DIGESTS, max_size=4), origin=st.sampled_from(["base", "enrolled"]))
    def enroll(self, name, numbers, origin):
        known = self.plain.get(name, set())
        photos = [photo(number) for number in numbers]
        for gallery in (self.steady, self.interrupted):
            assert gallery.enroll(name, photos, origin) == len({*numbers} - known)
        if numbers:
            self.plain[name] = known | {*numbers}

    @rule(name=NAMES)
    def forget(self, name):
        if self.plain.pop(name, None):
            self.steady.forget(name)
            self.interrupted.forget(name)

    @rule()
    def stop_and_start(self):
        self.interrupted = Gallery.from_snapshot(self.interrupted.snapshot())

    @invariant()
    def only_the_photos_count(self):
        assert self.steady.names == tuple(self.plain)
        assert digests(self.steady) == {
            name: sorted(f"{number:02d}" for number in numbers) for name, numbers in self.plain.items()
        }
        for row, numbers in zip(self.steady.prototypes.double().numpy(), self.plain.values(), strict=True):
            np.testing.assert_allclose(row, mean_direction(numbers), atol=1e-6)
        assert_same(self.steady, self.interrupted)
        assert self.steady.classes() == self.interrupted.classes()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)
