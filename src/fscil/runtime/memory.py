"""How much is computed at once: large score matrices are made in chunks of rows, to bound memory."""

MAX_VALUES = 2**24  # in one chunk: 64 MB of float32


def rows_per_chunk(columns: int) -> int:
    """How many rows of this many columns stay within MAX_VALUES; at least one."""
    return max(1, MAX_VALUES // max(1, columns))
