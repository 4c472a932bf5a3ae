import pytest
import torch

from fscil.runtime.seeding import seeded


def test_the_same_seed_gives_the_same_numbers():
    with seeded(3):
        first = torch.rand(5)
    with seeded(3):
        again = torch.rand(5)
    with seeded(4):
        other = torch.rand(5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_numbers_are_those_of_torchs_own_seed():
    with seeded(3):
        found = torch.rand(5)
    assert torch.equal(found, torch.rand(5, generator=torch.Generator().manual_seed(3)))


def test_the_global_generator_goes_on_as_if_nothing_had_been():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    before = torch.rand(2)
    with seeded(7):
        torch.rand(100)
    assert torch.equal(torch.cat([before, torch.rand(2)]), expected)


def test_the_global_generator_is_restored_after_an_exception():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="inside"), seeded(7):
        raise ValueError(f"inside {torch.rand(1)}")
    assert torch.equal(torch.rand(2), expected)
