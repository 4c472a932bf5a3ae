"""One thread, as sums in another order have other bits; a run folder; and a training that nothing interrupts."""

import pytest
import torch
from small_training import Training, config

from fscil.training.run_folder import Run


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", config(), {})


@pytest.fixture(scope="session")
def uninterrupted():
    torch.set_num_threads(1)
    return Training().train()
