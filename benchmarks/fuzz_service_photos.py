"""Loaded by schemathesis: what it sends where the OpenAPI document wants a photo, valid ones and damaged ones."""

import random

import schemathesis
from fuzz_targets import mutated, valid_images
from hypothesis import strategies as st

VALID = valid_images()
photos = st.sampled_from(VALID) | st.binary(max_size=200)
photos |= st.tuples(st.sampled_from(VALID), st.integers(0, 10**6)).map(
    lambda chosen: mutated(chosen[0], random.Random(chosen[1]))
)
schemathesis.openapi.media_type("image/jpeg", photos, aliases=["image/png", "application/octet-stream"])
