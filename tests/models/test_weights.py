import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fscil.errors import ConfigError, StoreError
from fscil.models import build_backbone, load_weights
from fscil.runtime.files import save_tensors


@pytest.fixture
def trained():
    """A small ResNet-18 that has seen a batch, so that its BatchNorm statistics are not the defaults."""
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", stem="imagenet", width=8)
    backbone(torch.randn(8, 3, 64, 64))
    return backbone.eval()


def with_classifier(state):
    return state | {"fc.weight": torch.randn(1000, 64), "fc.bias": torch.randn(1000)}


def without_counters(state):
    return {key: tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")}


def of_data_parallel(state):
    return {"epoch": 7, "state_dict": {f"module.{key}": tensor for key, tensor in state.items()}}


WRITERS = {
    "torchvision.pth": lambda state, path: torch.save(with_classifier(state), path),
    "torchvision-old.pth": lambda state, path: torch.save(
        without_counters(with_classifier(state)), path, _use_new_zipfile_serialization=False
    ),
    "data-parallel.pth": lambda state, path: torch.save(of_data_parallel(with_classifier(state)), path),
    "foreign.safetensors": lambda state, path: save_file(with_classifier(state), path),
    "ours.safetensors": lambda state, path: save_tensors(path, state, {"backbone": "resnet18"}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_features(trained, tmp_path, name):
    WRITERS[name](trained.state_dict(), tmp_path / name)
    loaded = build_backbone("resnet18", stem="imagenet", width=8, weights=tmp_path / name).eval()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(loaded(images), trained(images), rtol=0, atol=0)


def test_half_precision_files_fill_a_float_network(trained, tmp_path):
    path = tmp_path / "half.safetensors"
    save_file(
        {key: value.half() if value.is_floating_point() else value for key, value in trained.state_dict().items()}, path
    )
    loaded = build_backbone("resnet18", stem="imagenet", width=8, weights=path)
    assert loaded.conv1.weight.dtype == torch.float32
    torch.testing.assert_close(loaded.conv1.weight, trained.conv1.weight.half().float(), rtol=0, atol=0)


def test_a_path_may_be_a_string_that_starts_at_home(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    torch.save(trained.state_dict(), tmp_path / "mine.pth")
    loaded = build_backbone("resnet18", stem="imagenet", width=8, weights="~/mine.pth")
    assert torch.equal(loaded.conv1.weight, trained.conv1.weight)


@pytest.mark.parametrize(
    ("name", "options"), [("resnet20", {"width": 8}), ("efficientnet_lite0", {"pretrained": False})]
)
def test_other_backbones_load_files_too(tmp_path, name, options):
    torch.manual_seed(1)
    saved = build_backbone(name, **options).state_dict()
    save_tensors(tmp_path / "mine.safetensors", saved)
    options.pop("pretrained", None)
    loaded = build_backbone(name, weights=tmp_path / "mine.safetensors", **options).state_dict()
    assert all(torch.equal(tensor, saved[key]) for key, tensor in loaded.items())


def test_a_part_called_like_a_classifier_is_loaded_where_the_network_has_it(tmp_path):
    saved, filled = (torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)}) for _ in range(2))
    torch.save(saved.state_dict(), tmp_path / "w.pth")
    load_weights(filled, tmp_path / "w.pth", "a network with a head")
    assert torch.equal(filled["head"].weight, saved["head"].weight)


def refusal(path, **options):
    with pytest.raises(ConfigError) as caught:
        build_backbone(**{"name": "resnet18", "width": 8} | options, weights=path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message


def test_another_stem_is_named(trained, tmp_path):
    torch.save(with_classifier(trained.state_dict()), tmp_path / "w.pth")
    message = refusal(tmp_path / "w.pth")
    assert "do not fit resnet18(stem='cifar', width=8)" in message
    assert "1 of another shape (conv1.weight is 8x3x7x7 instead of 8x3x3x3)" in message
    assert message.endswith("It fits resnet18(stem='imagenet', width=8).")


def test_another_width_is_named_and_the_list_cut_short(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    message = refusal(tmp_path / "w.pth", stem="imagenet", width=4)
    assert (
        "conv1.weight is 8x3x7x7 instead of 4x3x7x7, bn1.weight is 8 instead of 4, bn1.bias is 8 instead of 4, …"
        in message
    )
    assert message.endswith("It fits resnet18(stem='imagenet', width=8).")


@pytest.mark.parametrize(
    ("name", "options", "fitting"),
    [
        ("resnet20", {"width": 8}, "resnet20(width=8)"),
        ("efficientnet_lite0", {"pretrained": False}, "efficientnet_lite0"),
    ],
)
def test_another_architecture_is_named(tmp_path, name, options, fitting):
    save_file(build_backbone(name, **options).state_dict(), tmp_path / "w.safetensors")
    message = refusal(tmp_path / "w.safetensors")
    assert " missing (" in message
    assert " unexpected (" in message
    assert message.endswith(f"It fits {fitting}.")


def test_the_shallow_architecture_is_named(tmp_path):
    save_file(build_backbone("resnet10", stem="half", width=8).state_dict(), tmp_path / "w.safetensors")
    assert refusal(tmp_path / "w.safetensors").endswith("It fits resnet10(stem='half', width=8).")


def test_keys_too_few_and_too_many_are_named(trained, tmp_path):
    state = trained.state_dict()
    del state["layer3.0.conv1.weight"]
    state["layer5.0.conv1.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pth")
    message = refusal(tmp_path / "w.pth", stem="imagenet")
    assert "1 missing (layer3.0.conv1.weight); 1 unexpected (layer5.0.conv1.weight)" in message
    assert "It fits" not in message


def test_a_refused_file_does_not_touch_the_network(trained, tmp_path):
    before = {key: tensor.clone() for key, tensor in trained.state_dict().items()}
    other = build_backbone("resnet18", stem="imagenet", width=8).state_dict()
    other["layer4.1.bn2.bias"] = torch.zeros(3)
    torch.save(other, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=r"layer4\.1\.bn2\.bias is 3 instead of 64"):
        load_weights(trained, tmp_path / "w.pth", "resnet18")
    assert all(torch.equal(tensor, before[key]) for key, tensor in trained.state_dict().items())


class Malice:
    """Unpickled by an ordinary unpickler it would make a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain pickle", "torch file"])
def test_a_pickle_that_would_run_a_program_is_refused(tmp_path, wrapped):
    mark, path = tmp_path / "mark", tmp_path / "evil.pth"
    content = {"conv1.weight": Malice(mark)}
    if wrapped:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    message = refusal(path)
    assert "refused: it wants to call" in message
    assert "mkdir" in message
    assert "torch.save(model.state_dict(), FILE)" in message
    assert not mark.exists()
    pickle.loads(pickle.dumps(Malice(mark)))  # noqa: S301 (the oracle: the trap does work)
    assert mark.exists()


def test_a_whole_pickled_network_is_refused(trained, tmp_path):
    torch.save(trained, tmp_path / "model.pth")
    assert "Backbone" in refusal(tmp_path / "model.pth")


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {0: torch.zeros(1)}, {"state_dict": 3}], ids=str)
def test_a_file_of_something_else_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    assert "not a state dict" in refusal(tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["torchvision.pth", "torchvision-old.pth", "foreign.safetensors"])
@pytest.mark.parametrize("keep", [0, 5, 2000])
def test_a_torn_file_is_refused(trained, tmp_path, name, keep):
    path = tmp_path / name
    WRITERS[name](trained.state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    assert "not a whole" in refusal(path)


def test_a_changed_file_of_ours_is_refused(trained, tmp_path):
    path = tmp_path / "ours.safetensors"
    save_tensors(path, trained.state_dict())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="checksum"):
        build_backbone("resnet18", stem="imagenet", width=8, weights=path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert "no such file" in refusal(tmp_path / "nothing.pth")
    assert "no such file" in refusal(Path(tmp_path))
