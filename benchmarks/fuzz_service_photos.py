"""Loaded by schemathesis: photos where the OpenAPI document wants some, names of photos that exist, and progress."""

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import schemathesis
from fuzz_targets import mutated, valid_images
from hypothesis import strategies as st

VALID = valid_images()
PROGRESS_SECONDS = 5.0
MOST_KNOWN = 1000
NAMES = ("ant", "Bär", "red panda")  # of classes of forge.example_model

photos = st.sampled_from(VALID) | st.binary(max_size=200)
photos |= st.tuples(st.sampled_from(VALID), st.integers(0, 10**6)).map(
    lambda chosen: mutated(chosen[0], random.Random(chosen[1]))
)
schemathesis.openapi.media_type("image/jpeg", photos, aliases=["image/png", "application/octet-stream"])

known: list[str] = []  # photos that wait for review or are negative examples, from the answers; the last ones
answers: Counter[int] = Counter()
shown = time.monotonic()


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Schemathesis itself says nothing until a phase of several minutes is over."""
    global shown
    answers[response.status_code] += 1
    if case.path.startswith(("/review", "/negatives")) and response.status_code == 200:
        known.extend(found.decode() for found in re.findall(rb'"id": ?"([0-9a-f]{64})"', response.content)[:10])
        del known[:-MOST_KNOWN]
    if time.monotonic() - shown > PROGRESS_SECONDS:
        shown = time.monotonic()
        counts = ", ".join(f"{status}: {count:,}" for status, count in sorted(answers.items()))
        print(f"{answers.total():,} requests ({counts})", file=sys.stderr, flush=True)


def _existing(generated: object, exist: Sequence[Any]) -> Any:
    """Every other time one of those that exist instead of one that never does: otherwise all answers are 404."""
    choose = random.Random(repr(generated))
    return choose.choice(exist) if exist and choose.random() < 0.5 else generated


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    if path_parameters and "photo" in path_parameters:
        path_parameters["photo"] = _existing(path_parameters["photo"], known)
    return path_parameters


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    if query and "name" in query:
        query["name"] = _existing(query["name"], NAMES)
    return query


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("photos"), list):
        body["photos"] = [_existing(photo, known) for photo in body["photos"]]
        if isinstance(body.get("name"), str):
            body["name"] = _existing(body["name"], NAMES)
    return body
