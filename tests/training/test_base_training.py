"""A step of base training never makes the host wait for the device, and compiled it is the same step."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import return_and_correct_aliasing

from fscil.models import Backbone
from fscil.training.base_training import base_network, base_step
from fscil.training.build import backbone_of
from fscil.training.loop import Batch, Trainer
from helpers import SIZE, small_config

aten = torch.ops.aten
# What a host can only know by waiting: a number (.item(), bool(), float()), or a shape that hangs on values.
WAITS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
}


class OnDevice(torch.Tensor):
    """A tensor as if far away: computing with it gives another such tensor, looking at its numbers is an error."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func is aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1])
        if func in WAITS or by_mask:
            raise AssertionError(f"{func} waits for the device")
        here = tree.tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs))
        result = tree.tree_map_only(torch.Tensor, cls, func(*here[0], **here[1]))
        return return_and_correct_aliasing(func, args, kwargs, result)


def on_device(network):
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(OnDevice(parameter.data))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = OnDevice(buffer)
    return network


def test_looking_at_numbers_on_the_device_is_noticed():
    far = OnDevice(torch.arange(3.0))
    for look in (lambda: far.sum().item(), lambda: bool((far > 1).any()), lambda: far[far > 1], lambda: far.nonzero()):
        with pytest.raises(AssertionError, match="waits for the device"):
            look()


@pytest.mark.parametrize("mixing", ["mixing.repeats=0", "mixing.repeats=2", "mixing.pairs=4"])
def test_a_step_does_not_wait_for_the_device(mixing):
    config = small_config("views.count=2", mixing)
    trainer = Trainer(config.train, torch.device("cpu"), quiet=True)
    network = on_device(base_network(config, trainer, backbone_of(config), 6)).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, nesterov=True)
    pixels = torch.randint(0, 256, (12, SIZE, SIZE, 3), dtype=torch.uint8)
    sizes, labels = torch.full((12, 2), SIZE), torch.arange(12) % 6
    before = network.head.weight.inner.clone()
    losses = []
    for loss in base_step(config, network, 6)(Batch(OnDevice(pixels), sizes, labels, torch.Generator(), 0.5)):
        loss.backward()
        losses.append(loss)
    optimizer.step()
    assert len(losses) == 2
    assert all(isinstance(loss, OnDevice) and loss.inner.isfinite() for loss in losses)
    assert not torch.equal(network.head.weight.inner, before)


def test_a_compiled_step_has_the_same_loss_and_gradients():
    found = []
    for compiled in ("off", "aot_eager"):
        config = small_config("views.count=1", "mixing.repeats=0", f"train.compile={compiled}")
        trainer = Trainer(config.train, torch.device("cpu"), quiet=True)
        torch.manual_seed(0)
        backbone = Backbone(
            4, conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten()
        )
        network = base_network(config, trainer, backbone, 6).train()
        random = torch.Generator().manual_seed(1)
        pixels = torch.randint(0, 256, (12, SIZE, SIZE, 3), dtype=torch.uint8, generator=random)
        batch = Batch(pixels, torch.full((12, 2), SIZE), torch.arange(12) % 6, random, 0.5)
        (loss,) = base_step(config, network, 6)(batch)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in network.parameters())])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(plain, compiled, rtol=1e-4, atol=1e-5)
