"""Export for other programs: the network as ONNX, gallery and decision rule as arrays, compared with the classifier.

The file's metadata describes how a photo is prepared with Pillow and numpy alone. `prepare` does exactly that, and the
comparison uses it: from a photo's pixels to the nearest class.
"""

import copy
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fscil import __version__
from fscil.classifier import Classifier
from fscil.classifier.decision import Decision
from fscil.classifier.encoder import PhotoEncoder
from fscil.data import glyphs
from fscil.data.images import Resize
from fscil.data.photos import Source, as_list, pixels
from fscil.errors import ExportError
from fscil.gallery import Gallery, TwoCovarianceRule
from fscil.preprocess import Preprocess
from fscil.runtime.extras import install_command
from fscil.runtime.files import replacing, write_bytes
from fscil.runtime.progress import ProgressBar

Floats: TypeAlias = NDArray[np.float32]

OPSET = 18
MAX_COSINE_DIFFERENCE = 1e-4  # by which the cosine of an exported feature to the classifier's may be below 1
TIE_TOLERANCE = 0.1  # classes whose scores differ by less than this many of the rule's rounding errors are equally near
GLYPHS = 32  # of the embedded data set that are compared where no images are given
BATCH = 32


@dataclass(frozen=True)
class Parity:
    """How an export compares with the classifier it was made from.

    Attributes
    ----------
    images : int
        How many were compared.
    max_cosine_difference : float
        Largest difference of a feature from the classifier's: 1 minus their cosine.
    same_top1 : bool
        Whether the nearest class is the same for every image.
    """

    images: int
    max_cosine_difference: float
    same_top1: bool


def export_onnx(
    classifier: Classifier,
    path: str | os.PathLike[str],
    images: Source | Sequence[Source] | None = None,
    quiet: bool = True,
) -> Parity:
    """Write the network to `path` and the gallery to `path`.gallery.npz, if both predict as the classifier does.

    Parameters
    ----------
    classifier : Classifier
        Its network is exported as it predicts: with BatchNorm folded into the convolutions, in float32.
    path : path
        The ONNX file to write.
    images : photo or sequence of photos, optional
        To compare on; by default glyphs of the embedded data set.
    quiet : bool
        Show no progress.

    Returns
    -------
    Parity
        How close the exported network is.

    Raises
    ------
    ExportError
        If the export extra is missing, the network cannot be exported, or the export predicts otherwise. Then nothing
        is written.
    StoreError
        If the files cannot be written.

    Examples
    --------
    >>> parity = export_onnx(Classifier.load("birds.fscil"), "birds.onnx", ["garden.jpg", "pond.jpg"])
    >>> parity.images, parity.same_top1
    (2, True)
    """
    _check_extra()
    target = Path(path)
    encoder = classifier.encoder
    preparation = describe(encoder.config.resize, encoder.config.preprocess)
    chosen = _glyphs() if images is None else as_list(images)
    if not chosen:
        raise ExportError("There is no image to compare the exported network on. Give at least one.")
    with ProgressBar("export", 1 + len(chosen), quiet=quiet) as bar:
        bar.advance(0, "the network as ONNX")
        content = _to_onnx(encoder, preparation)
        bar.advance(1, "images compared")
        parity = _compare(classifier, content, preparation, chosen, bar)
    if not (parity.max_cosine_difference <= MAX_COSINE_DIFFERENCE and parity.same_top1):  # also if it is NaN
        raise ExportError(
            f"{target}: not written, because on {parity.images} images the exported network predicts otherwise: "
            f"features differ by up to {parity.max_cosine_difference:.1e} in cosine (at most "
            f"{MAX_COSINE_DIFFERENCE:.0e} is allowed), the nearest class is "
            f"{'the same' if parity.same_top1 else 'another'}. Incompatible versions of torch, onnxscript and "
            f"onnxruntime are the likely cause: upgrade them."
        )
    with classifier.lock:
        _write_gallery(gallery_beside(target), classifier.gallery, classifier.decision)
    write_bytes(target, content)
    return parity


def gallery_beside(path: Path) -> Path:
    """Where the gallery of an exported network is."""
    return path.with_name(f"{path.name}.gallery.npz")


def describe(resize: Resize, preprocess: Preprocess) -> dict[str, Any]:
    """From an upright photo in RGB to the network's input, as JSON; `prepare` does what it describes."""
    size = resize.size
    stored = min(size) if isinstance(size, tuple) else size
    wanted = preprocess.resize or stored
    if wanted is None or (stored is not None and max(wanted, preprocess.crop) != stored):
        raise ExportError(
            "Only a model that resizes a photo once can be exported, so that any program can do the same. This one has "
            f"resize={size} when it decodes and resize={preprocess.resize}, crop={preprocess.crop} afterwards."
        )
    return {
        "short_side": None if isinstance(size, tuple) else max(wanted, preprocess.crop),
        "size": [size[1], size[0]] if isinstance(size, tuple) else None,
        "filter": (preprocess if size is None else resize).interpolation.upper(),
        "crop": preprocess.crop,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "about": "Turn the photo upright (EXIF), put it on white where it is transparent, convert it to RGB. Resize it "
        "with Pillow's filter: the short side to short_side, the long side in proportion, rounded down; or to size "
        "(width, height) if that is given. Cut crop x crop pixels from the centre, the corner rounded down. Divide by "
        "255, subtract mean, divide by std. The network takes float32 (batch, 3, crop, crop).",
    }


def prepare(image: Image.Image, preparation: Mapping[str, Any]) -> Floats:
    """An upright RGB photo -> (3, crop, crop), ready for the network, by the file's own description."""
    side, crop = preparation["short_side"], preparation["crop"]
    width, height = preparation["size"] or (side * length // min(image.size) for length in image.size)
    image = image.resize((width, height), Image.Resampling[preparation["filter"]])
    left, top = (width - crop) // 2, (height - crop) // 2
    values = np.asarray(image.crop((left, top, left + crop, top + crop))) / 255
    normal: Floats = ((values - preparation["mean"]) / preparation["std"]).astype(np.float32)
    return normal.transpose(2, 0, 1)


def _check_extra() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f"Export to ONNX needs a package that is not installed ({error.name}). Run: {install_command('export')}"
        ) from error


def _to_onnx(encoder: PhotoEncoder, preparation: Mapping[str, Any]) -> bytes:
    """The network that predicts, BatchNorm folded in, in float32 for any number of images at once."""
    import onnx

    network = copy.deepcopy(encoder.network).float().cpu()
    side = preparation["crop"]
    with _quiet_exporter():
        program = torch.onnx.export(
            network,
            (torch.zeros(2, 3, side, side),),  # two, because one would be taken for a constant
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise ExportError("torch gave no ONNX model. Upgrade torch.")
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        del part.metadata_props[:]  # where in this machine's source each one came from
    about = {
        "fscil_version": __version__,
        "feature_dim": str(encoder.dim),
        "preprocessing": json.dumps(preparation),
    }
    onnx.helper.set_model_props(model, about)
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """torch's exporter warns of its own deprecations and of packages it does not need."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _write_gallery(path: Path, gallery: Gallery, decision: Decision) -> None:
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **gallery_arrays(gallery, decision))


def gallery_arrays(gallery: Gallery, decision: Decision) -> dict[str, NDArray[Any]]:
    """What a program needs beside the network, by name; docs/deploy.md describes it.

    threshold: the smallest evidence that is accepted, minus infinity where every photo is.
    """
    rule = gallery.rule
    arrays: dict[str, NDArray[Any]] = {
        "rule": np.array(rule.name),
        "names": np.array(gallery.names, np.str_),
        "score": np.array(decision.calibration.score if decision.calibration else rule.default_score),
        "threshold": np.array(decision.smallest_accepted(len(gallery))),
    }
    if not isinstance(rule, TwoCovarianceRule):
        return {**arrays, "prototypes": gallery.prototypes.numpy()}
    distinct, group = torch.unique(gallery.counts, return_inverse=True)
    rows = gallery.prototypes.numpy() if len(gallery) else np.empty((0, len(rule.model.psi) + 1), np.float32)
    model = {name: value.numpy() for name, value in rule.state().items()}
    arrays |= {name: model[name] for name in ("centre", "projection", "psi", "rescale")}
    arrays |= {"weights": rows[:, :-1], "offsets": rows[:, -1]}
    arrays |= {"precision": rule.model.excess_precision(distinct).numpy(), "group": group.numpy()}
    arrays |= {"information": rule.offsets_of_known(gallery.counts).numpy()}
    arrays |= {"degrees": model["degrees"], "determinants": rule.model.information(distinct).float().numpy()[group]}
    if decision.probability:
        found = decision.probability
        arrays |= {
            name: np.array(value)
            for name, value in (
                ("temperature", found.temperature),
                ("slope", found.slope),
                ("offset", found.offset_among(len(gallery))),
                ("unknown_prior", decision.unknown_prior),
                ("known_threshold", decision.thresholds.known),
            )
        }
    return arrays


def _glyphs() -> list[Source]:
    images = glyphs.load().test
    chosen = np.linspace(0, len(images) - 1, GLYPHS).astype(np.int64)
    return list(images.batch(chosen)[0])


def _compare(
    classifier: Classifier, content: bytes, preparation: Mapping[str, Any], images: Sequence[Source], bar: ProgressBar
) -> Parity:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    ours, theirs = [], []
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        ours.append(classifier.features(part).numpy().astype(np.float64))
        ready = np.stack([prepare(Image.fromarray(pixels(image, Resize())), preparation) for image in part])
        theirs.append(session.run(["features"], {"images": ready})[0].astype(np.float64))
        bar.advance(len(part))
    mine, other = np.concatenate(ours), np.concatenate(theirs)
    same, gallery = True, classifier.gallery
    if len(gallery):
        scores = gallery.scores(torch.from_numpy(mine)).numpy()
        chosen = gallery.scores(torch.from_numpy(other)).numpy().argmax(1)[:, None]
        allowed = scores.max(1) - TIE_TOLERANCE * gallery.rule.rounding
        same = bool((np.take_along_axis(scores, chosen, 1)[:, 0] >= allowed).all())
    return Parity(len(images), float((1 - (_unit(mine) * _unit(other)).sum(1)).max()), same)


def _unit(features: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return unit
