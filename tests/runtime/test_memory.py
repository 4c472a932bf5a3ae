import pytest

from fscil.runtime.memory import MAX_VALUES, rows_per_chunk


@pytest.mark.parametrize("columns", [1, 7, 1000, MAX_VALUES - 1, MAX_VALUES])
def test_as_many_rows_as_fit(columns):
    rows = rows_per_chunk(columns)
    assert rows * columns <= MAX_VALUES < (rows + 1) * columns


@pytest.mark.parametrize("columns", [MAX_VALUES + 1, 10 * MAX_VALUES])
def test_at_least_one_row_however_wide(columns):
    assert rows_per_chunk(columns) == 1


def test_no_columns_are_no_division_by_zero():
    assert rows_per_chunk(0) == MAX_VALUES
