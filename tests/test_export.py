"""An exported model predicts as the model does, and its files hold all that another program needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import nn

import fscil
from fscil import export
from fscil.classifier import Classifier
from fscil.classifier.decision import Decision
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.config import load_recipe
from fscil.data.images import MAX_ASPECT, Resize
from fscil.errors import ExportError, StoreError
from fscil.experiments.run import train
from fscil.export import describe, export_onnx, gallery_beside, prepare
from fscil.gallery import TwoCovariance, TwoCovarianceRule
from fscil.gallery.probability import ProbabilityCalibration
from fscil.models import Backbone, build_backbone
from fscil.openset import SCORES, Calibration, Evidence
from fscil.preprocess import Preprocess
from fscil.training.context import Context
from fscil.training.run_folder import Run
from helpers import NAMES, SMALL, picture

onnx = pytest.importorskip("onnx", reason="the export extra is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the export extra is not installed")
pytest.importorskip("onnxscript", reason="the export extra is not installed")

DOCS = Path(__file__).parents[1] / "docs"


def classifier(backbone, name="tiny", options=None, resize=20, crop=16):
    config = EncoderConfig(name, options or {}, Resize(resize), Preprocess(crop))
    return Classifier(PhotoEncoder(config, backbone, torch.device("cpu")))


def with_batch_norm(backbone):
    """As if trained: BatchNorm that does something."""
    random = torch.Generator().manual_seed(0)
    for part in backbone.modules():
        if isinstance(part, nn.BatchNorm2d):
            for values in (part.running_var, part.weight):
                values.data.uniform_(0.5, 1.5, generator=random)
            for values in (part.running_mean, part.bias):
                values.data.normal_(0, 0.5, generator=random)
    return backbone


def tiny():
    """A network whose features separate the pictures' classes, and which is exported quickly."""
    torch.manual_seed(0)
    parts = {
        "conv": nn.Conv2d(3, 12, 5, stride=2, bias=False),
        "bn": nn.BatchNorm2d(12),
        "relu": nn.ReLU(),
        "pool": nn.AdaptiveAvgPool2d(2),
        "flatten": nn.Flatten(),
    }
    return classifier(with_batch_norm(Backbone(48, **parts)))


def photo(label, seed, size=(50, 40)):
    return Image.fromarray(picture(label, seed)).resize(size, Image.Resampling.BICUBIC)


def enrolled(model, classes=4):
    for label in range(classes):
        model.enroll(NAMES[label], [photo(label, seed) for seed in range(3)])
    return model


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


BACKBONES = {
    "resnet18": {"stem": "imagenet", "width": 2},
    "resnet20": {"width": 2},
    "efficientnet_lite0": {"pretrained": False},
}


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_comes_through(tmp_path, name):
    torch.manual_seed(0)
    model = enrolled(classifier(with_batch_norm(build_backbone(name, **BACKBONES[name])), name, resize=40, crop=36))
    path = tmp_path / "some.onnx"
    parity = export_onnx(model, path, [photo(label, 9) for label in range(5)])
    assert parity.images == 5
    assert abs(parity.max_cosine_difference) <= 1e-6
    assert parity.same_top1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["some.onnx", "some.onnx.gallery.npz"]
    graph = onnx.load(path).graph
    assert {"BatchNormalization", "Dropout"}.isdisjoint(node.op_type for node in graph.node)
    for count in (1, 2, 5):
        images = torch.randn(count, 3, 36, 36, generator=torch.Generator().manual_seed(count))
        (found,) = session(path).run(None, {"images": images.numpy()})
        assert found.shape == (count, model.encoder.backbone.feature_dim)
        np.testing.assert_allclose(found, model.encoder.backbone(images).numpy(), rtol=1e-3, atol=1e-5)


def test_batch_norm_is_folded_into_the_exported_convolution(tmp_path):
    """Weights and biases by the formula of BatchNorm with fixed statistics."""
    model = tiny()
    export_onnx(model, tmp_path / "a.onnx", [photo(0, 1)])
    backbone = model.encoder.backbone
    factor = backbone.bn.weight / (backbone.bn.running_var + backbone.bn.eps).sqrt()
    expected = {
        "weight": (backbone.conv.weight * factor[:, None, None, None]).numpy(),
        "bias": (backbone.bn.bias - backbone.bn.running_mean * factor).numpy(),
    }
    found = [onnx.numpy_helper.to_array(each) for each in onnx.load(tmp_path / "a.onnx").graph.initializer]
    for name, values in expected.items():
        same = [each for each in found if each.shape == values.shape and np.allclose(each, values, atol=1e-6)]
        assert len(same) == 1, name


def test_a_run_on_small_images_comes_through(tmp_path):
    """Its data set is stored as it is, photos are not."""
    config = load_recipe("glyphs", [*SMALL, "train.epochs=0", "views.size=32", "protocol.base_classes=3"])
    run = Run.create(tmp_path / "run", config, {"data": None})
    train(config, run, None, Context.on("cpu", quiet=True), lambda text: None)
    made = Classifier.from_run(tmp_path / "run", quiet=True)
    assert export_onnx(made, tmp_path / "some.onnx", [photo(1, 2, (400, 300))]).same_top1


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A calibrated model with names in several scripts, and its files."""
    model = enrolled(tiny(), classes=10)
    model.calibration = Calibration("margin", 0.25, 0.05, None, 10, 0)
    path = tmp_path_factory.mktemp("exported") / "birds.onnx"
    export_onnx(model, path, [photo(label, 7) for label in range(3)])
    return model, path


def test_metadata_describe_how_to_prepare_a_photo(exported):
    model, path = exported
    found = session(path).get_modelmeta().custom_metadata_map
    assert found["fscil_version"] == fscil.__version__
    assert found["feature_dim"] == "48"
    steps = json.loads(found["preprocessing"])
    assert (steps["short_side"], steps["size"], steps["filter"], steps["crop"]) == (20, None, "BILINEAR", 16)
    preprocess = model.encoder.config.preprocess
    assert (tuple(steps["mean"]), tuple(steps["std"])) == (preprocess.mean, preprocess.std)


def test_inputs_and_outputs_have_names_and_any_batch(exported):
    content = onnx.load(exported[1])
    onnx.checker.check_model(content, full_check=True)
    assert [(each.domain, each.version) for each in content.opset_import] == [("", 18)]
    (inputs,), (outputs,) = content.graph.input, content.graph.output
    shapes = [
        [side.dim_param or side.dim_value for side in each.type.tensor_type.shape.dim] for each in (inputs, outputs)
    ]
    assert (inputs.name, outputs.name) == ("images", "features")
    assert shapes == [["batch", 3, 16, 16], ["batch", 48]]


def test_nothing_identifies_the_machine(exported):
    content = exported[1].read_bytes()
    assert str(Path(fscil.__file__).parent).encode() not in content
    assert b"stack_trace" not in content


def test_the_gallery_is_plain_arrays(exported):
    model, path = exported
    with np.load(gallery_beside(path), allow_pickle=False) as found:
        assert found["names"].tolist() == list(NAMES[:10])
        np.testing.assert_array_equal(found["prototypes"], model.gallery.prototypes.numpy())
        np.testing.assert_allclose(np.linalg.norm(found["prototypes"], axis=1), 1, rtol=1e-6)
        assert (str(found["score"]), float(found["threshold"])) == ("margin", 0.25)


def test_without_classes_and_calibration(tmp_path):
    path = tmp_path / "deep" / "er" / "net.onnx"
    parity = export_onnx(tiny(), path)
    assert parity.images == export.GLYPHS
    with np.load(gallery_beside(path), allow_pickle=False) as found:
        assert found["prototypes"].shape == (0, 48)
        assert found["names"].tolist() == []
        assert float(found["threshold"]) == -np.inf


def test_photos_of_all_kinds_are_compared(tmp_path):
    upright = photo(1, 5, (60, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    upright.rotate(90, expand=True).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    glass = photo(2, 5).convert("RGBA")
    glass.putalpha(Image.linear_gradient("L").resize(glass.size))
    glass.save(tmp_path / "glass.png")
    images = [tmp_path / "turned.jpg", str(tmp_path / "glass.png"), upright, np.asarray(upright), photo(3, 5, (9, 200))]
    parity = export_onnx(enrolled(tiny()), tmp_path / "a.onnx", images)
    assert parity.images == 5
    assert parity.max_cosine_difference < 2e-5  # the last one is so long that a grey level may be rounded otherwise


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.integers(4, 30),
    st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(0, 20))),
    st.integers(0, 20),
    st.sampled_from(["bilinear", "bicubic"]),
    st.integers(0, 9),
)
def test_pillow_and_numpy_prepare_a_photo_as_the_model_does(shape, crop, exact, longer, interpolation, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    size = (crop + exact[0], crop + exact[1]) if exact else crop + longer
    resize, preprocess = Resize(size, interpolation), Preprocess(crop)
    stored = torch.from_numpy(np.array(resize.apply(Image.fromarray(pixels))))
    expected = preprocess(stored[None], torch.tensor([stored.shape[:2]]))[0].numpy()
    found = prepare(Image.fromarray(pixels), json.loads(json.dumps(describe(resize, preprocess))))
    assert found.dtype == np.float32
    # Of a photo longer than MAX_ASPECT times its short side the model resizes the central part alone: Pillow's
    # fixed-point filters may then round a grey level otherwise.
    strip = exact is None and max(shape) > MAX_ASPECT * min(shape)
    np.testing.assert_allclose(found, expected, atol=1.1 / 255 / min(preprocess.std) if strip else 1e-5)


def test_a_photo_may_be_resized_after_it_was_decoded_as_it_is():
    preprocess = Preprocess(16, 20, "bicubic")
    pixels = np.asarray(photo(1, 1))
    expected = preprocess(torch.from_numpy(pixels.copy())[None], torch.tensor([pixels.shape[:2]]))[0].numpy()
    found = prepare(Image.fromarray(pixels), describe(Resize(), preprocess))
    np.testing.assert_allclose(found, expected, atol=1.1 / 255 / min(preprocess.std))  # Pillow rounds to whole values


@pytest.mark.parametrize(
    ("resize", "preprocess"),
    [(Resize(), Preprocess(16)), (Resize(32), Preprocess(16, 20)), (Resize(12), Preprocess(16))],
)
def test_what_no_single_resize_can_do_is_refused(resize, preprocess):
    with pytest.raises(ExportError, match="resizes a photo once"):
        describe(resize, preprocess)


@pytest.mark.parametrize(
    ("limit", "value", "said"), [("MAX_COSINE_DIFFERENCE", -1, "the same"), ("TIE_TOLERANCE", -3, "another")]
)
def test_an_export_that_differs_is_not_written(tmp_path, monkeypatch, limit, value, said):
    monkeypatch.setattr(export, limit, value)
    with pytest.raises(ExportError, match=rf"birds\.onnx: not written.* 2 images.*nearest class is {said}"):
        export_onnx(enrolled(tiny()), tmp_path / "birds.onnx", [photo(0, 1), photo(1, 1)])
    assert list(tmp_path.iterdir()) == []


def test_no_image_to_compare_on(tmp_path):
    with pytest.raises(ExportError, match="no image"):
        export_onnx(tiny(), tmp_path / "birds.onnx", [])


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_extra_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf'{package}.*pip install .*\[export\]"$'):
        export_onnx(tiny(), tmp_path / "birds.onnx")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        export_onnx(tiny(), tmp_path / "file" / "birds.onnx", [photo(0, 0)])


# docs/deploy.md


def programs():
    return re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "deploy.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def run(program, folder, *arguments):
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    found = subprocess.run([sys.executable, str(script), *arguments], cwd=folder, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def by_cosine():
    """The first part of the program, with the second for models that decide by cosine."""
    return programs()[0].partition("\nx = ")[0] + "\n" + programs()[1]


@pytest.mark.parametrize(("program", "lines"), [(programs()[0], 25), (by_cosine(), 16)], ids=["ratios", "cosines"])
def test_the_programs_in_the_docs_are_short_and_need_three_packages(program, lines):
    assert len([line for line in program.splitlines() if line]) <= lines
    assert set(re.findall(r"torch|fscil|sklearn|scipy", program)) == set()


@pytest.mark.parametrize(("rescale", "degrees"), [(False, None), (True, None), (False, 20.0)])
@pytest.mark.parametrize("threshold", [None, 5.0])
def test_the_program_in_the_docs_computes_the_same_probabilities(tmp_path, rescale, degrees, threshold):
    """Classes of 2 to 6 photos; with the model's own thresholds and with a calibrated one."""
    model = tiny()
    for label in range(5):
        model.gallery.enroll(NAMES[label], model.photos([photo(label, seed) for seed in range(2 + label)]))
    features, labels = model.gallery.features()
    rule = TwoCovarianceRule(TwoCovariance.fit(features, labels, rescale=rescale, degrees=degrees))
    probability = ProbabilityCalibration(temperature=3.0, slope=0.3, offset=-0.2)
    calibration = None if threshold is None else Calibration("log_ratio", threshold, 0.05, None, 1, 0)
    model = Classifier(model.encoder, model.gallery.under(rule), Decision(calibration, probability, 0.25))
    paths = []
    for name, image in (
        ("known", photo(2, 8)),
        ("other", photo(4, 9)),
        ("no", ImageOps.expand(photo(7, 8), 30, "red")),
    ):
        paths.append(tmp_path / f"{name}.png")
        image.save(paths[-1])
    export_onnx(model, tmp_path / "birds.onnx", paths)
    alone = programs()[0] + '\nassert sys.modules.keys().isdisjoint({"torch", "fscil"})\n'
    for path, expected in zip(paths, model.predict(paths), strict=True):
        answer, probability, unknown = run(alone, tmp_path, path.name).rsplit(" ", 2)
        assert answer == f"{expected.state} {expected.ranking[0][0]}"
        assert float(probability) == pytest.approx(expected.probability, abs=1e-4)
        assert float(unknown) == pytest.approx(expected.unknown_probability, abs=1e-4)


@pytest.mark.parametrize("exact", [False, True], ids=["short side", "exact size"])
def test_the_program_for_cosines_answers_as_the_model(tmp_path, exact):
    model = enrolled(tiny(), classes=5)
    if exact:
        config = EncoderConfig("tiny", {}, Resize((18, 24)), Preprocess(16))
        model = enrolled(Classifier(PhotoEncoder(config, model.encoder.backbone, torch.device("cpu"))), classes=5)
    seen = photo(2, 8)
    seen.save(tmp_path / "seen.png")
    ImageOps.expand(photo(7, 8), 30, "magenta").save(tmp_path / "unknown.png")
    scores = [
        float(SCORES["contrast"](Evidence(model.gallery.scores(model.features(tmp_path / name)))))
        for name in ("seen.png", "unknown.png")
    ]
    assert scores[1] < scores[0]
    model.calibration = Calibration("contrast", sum(scores) / 2, 0.05, None, 1, 0)
    export_onnx(model, tmp_path / "birds.onnx", [seen])
    known, unknown = model.predict([tmp_path / "seen.png", tmp_path / "unknown.png"])
    assert (known.label, unknown.label) == (NAMES[2], None)
    alone = by_cosine() + '\nassert sys.modules.keys().isdisjoint({"torch", "fscil"})\n'
    for name, expected in (("seen.png", known), ("unknown.png", unknown)):
        label, cosine = run(alone, tmp_path, name).rsplit(" ", 1)
        assert label == (expected.label or "unknown")
        assert float(cosine) == pytest.approx(expected.score, abs=1e-5)


def test_the_formulas_in_the_docs_are_those_of_the_scores():
    rows = re.findall(r"^\| `(\w+)` \| `(.+)` \|$", (DOCS / "deploy.md").read_text(encoding="utf-8"), re.MULTILINE)
    formulas = {name: formula for name, formula in rows if "first" in formula}
    assert formulas.keys() == SCORES.keys()
    assert f"known = {formulas['contrast']} >= " in programs()[1]
    random = np.random.default_rng(0)
    for classes in (1, 2, 5, 40):
        cosines = random.uniform(-1, 1, classes).astype(np.float32)
        first, *others = -np.sort(-cosines)[:11]
        for name, formula in formulas.items():
            found = eval(formula, {"np": np, "cosines": cosines, "first": first, "others": others, "max": max})
            expected = float(SCORES[name](Evidence(torch.from_numpy(cosines)[None])))
            assert found == pytest.approx(expected, abs=1e-5), (name, classes)
