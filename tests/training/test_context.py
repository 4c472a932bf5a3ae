"""A device by its name, and an error that says what to do where there is none."""

import pytest
import torch

from fscil.errors import TrainingError
from fscil.training.context import Context, pick_device


def test_a_context_is_a_device_and_whether_to_be_quiet():
    assert Context.on("cpu") == Context(torch.device("cpu"), quiet=False)
    assert Context.on("cpu", quiet=True).quiet
    assert Context.on().device == pick_device("auto")


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "meta", "cpu:x", "xpu"):
        with pytest.raises(TrainingError, match=f"--device {name}: no such device"):
            pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none():
    for name in ("cuda", "cuda:1"):
        with pytest.raises(TrainingError, match=f"--device {name}: .*no usable CUDA device.*--device cpu"):
            pick_device(name)
