"""Decision rules compared on the same frozen features, under the few-shot class-incremental protocol.

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out F.safetensors
    python benchmarks/readout.py extract RUN --out F.safetensors [--data DIR] [--weights FILE]
    python benchmarks/readout.py compare F.safetensors --out FOLDER [--draws 10] [--readouts cosine,plda]

`extract` encodes every image once: a recipe's initial network, or that of a run folder. `compare` writes results.json,
table.md and trials.jsonl. The constants of every readout are chosen on the base classes' training images alone: base
classes are held out in turn as pseudo-novel ones, enrolled from 1 and 5 images, and images that nothing was estimated
from are named, and told from unknown before the fold is enrolled. The sum of harmonic accuracy and AUROC decides.

Test images are seen once, with the constants chosen. AUROC: test images of the classes seen so far against those of
later sessions, by the largest score, mean over all sessions but the last. ECE: expected calibration error of
PLDA's probabilities, "unknown" included with a prior of 1/2, over the same sessions.
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fscil.config import load_recipe
from fscil.features import FeatureCache
from fscil.gallery import balanced_means, class_means, cosine_scores
from fscil.gallery.choosing import Division, choose, divisions
from fscil.gallery.probability import ProbabilityCalibration, calibration_error
from fscil.gallery.two_covariance import Constants, TwoCovariance
from fscil.metrics import auroc, harmonic_accuracy, mean_and_interval, session_scores
from fscil.openset import Evidence, contrast
from fscil.protocol import Draw, Protocol
from fscil.runtime.files import append_json_line, load_tensors, save_tensors, write_json, write_text
from fscil.training.build import backbone_of, dataset_of, preprocess_of, protocol_of
from fscil.training.run_folder import machine

SHOTS = (5, 1)
FIGURES = ("average", "base", "novel", "harmonic", "auroc")


# Readouts: fit to (n, d) base features and (n,) labels 0..C-1, then score (m, d) queries against all classes.


@dataclass
class Cosine:
    """The paper's: cosine to the mean of k images, for base classes the k nearest to their mean, or all images."""

    balanced: bool = True
    grid: ClassVar[dict[str, list[Any]]] = {}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        self._base, self._labels, self._classes = base, labels, int(labels.max()) + 1
        self._all = class_means(base, labels, self._classes)
        self._near: dict[int, Tensor] = {}

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        """novel: (C, k, d), C may be 0. Returns (m, base classes + C)."""
        return cosine_scores(queries, torch.cat([self.base_means(novel), novel.mean(1)]))

    def base_means(self, novel: Tensor) -> Tensor:
        shots = novel.shape[1]
        if not self.balanced or not len(novel):
            return self._all
        if shots not in self._near:
            self._near[shots] = balanced_means(self._base, self._labels, self._classes, shots)
        return self._near[shots]


@dataclass
class Teen(Cosine):
    """TEEN (Wang et al., 2023): novel prototypes move towards the base prototypes they resemble."""

    balanced: bool = False
    alpha: float = 0.5
    temperature: float = 16.0
    grid: ClassVar[dict[str, list[Any]]] = {"alpha": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], "temperature": [16.0]}

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        base = F.normalize(self._all, dim=1)
        new = F.normalize(novel.mean(1), dim=1)
        new = (1 - self.alpha) * new + self.alpha * (self.temperature * new @ base.T).softmax(1) @ base
        return cosine_scores(queries, torch.cat([base, new]))


class Covariance:
    """Shared within-class covariance of prepared features, in its eigenbasis; remembered for the last features."""

    _last: ClassVar[tuple[Tensor, tuple[Tensor, ...]] | None] = None

    @classmethod
    def of(cls, base: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """centre (d,), class means (C, d), eigenvalues (d,), eigenvectors (d, d), prepared (n, d)"""
        if cls._last is None or cls._last[0] is not base:
            prepared = tukey(base, 0.5)
            means = class_means(prepared, labels, int(labels.max()) + 1)
            residuals = prepared - means[labels]
            values, vectors = torch.linalg.eigh(residuals.T @ residuals / (len(base) - len(means)))
            cls._last = base, (means.mean(0), means, values.clamp_min(0), vectors, prepared)
        return cls._last[1]


def tukey(features: Tensor, power: float) -> Tensor:
    """(n, d) signed power (1/2: square root), unit length, float64."""
    wide = features.double()
    return F.normalize(wide.sign() * wide.abs() ** power, dim=1)


@dataclass
class WhitenedCosine:
    """Cosine to class means after centring and whitening by the shrunk within-class covariance."""

    shrinkage: float = 0.5
    balanced: bool = False
    grid: ClassVar[dict[str, list[Any]]] = {
        "shrinkage": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9],
        "balanced": [False, True],
    }

    def fit(self, base: Tensor, labels: Tensor) -> None:
        self._centre, _, values, vectors, prepared = Covariance.of(base, labels)
        shrunk = (1 - self.shrinkage) * values + self.shrinkage * values.mean()
        self._map = vectors * shrunk.rsqrt()
        self._cosine = Cosine(self.balanced)
        self._cosine.fit((prepared - self._centre) @ self._map, labels)

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        return self._cosine.scores(self._mapped(queries), self._mapped(novel))

    def _mapped(self, features: Tensor) -> Tensor:
        mapped = (tukey(features.flatten(0, -2), 0.5) - self._centre) @ self._map
        return mapped.unflatten(0, features.shape[:-1])


@dataclass
class Lda:
    """Linear discriminant with a shared covariance (as in Hayes and Kanan, 2020): the nearest mean in its metric."""

    shrinkage: float = 0.5
    grid: ClassVar[dict[str, list[Any]]] = {"shrinkage": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        self._centre, means, values, vectors, _ = Covariance.of(base, labels)
        shrunk = (1 - self.shrinkage) * values + self.shrinkage * values.mean()
        self._map = vectors * shrunk.rsqrt()
        self._means = (means - self._centre) @ self._map

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        new = (tukey(novel.flatten(0, 1), 0.5).view(novel.shape).mean(1) - self._centre) @ self._map
        means = torch.cat([self._means, new])
        mapped = (tukey(queries, 0.5) - self._centre) @ self._map
        return mapped @ means.T - means.square().sum(1) / 2 - mapped.square().sum(1, keepdim=True) / 2


@dataclass
class FeCam:
    """FeCAM-like (Goswami et al., 2023): Tukey's transform, per class a shrunk covariance normalised to correlations.

    Shrinkage follows the paper: off-diagonal elements and diagonal ones each gain a multiple of their mean. A few
    shots are too few for a covariance of their own: new classes use the mean of the base classes' normalised ones.
    """

    power: float = 0.5
    diagonal: float = 1.0
    off_diagonal: float = 1.0
    dims: int = 256
    grid: ClassVar[dict[str, list[Any]]] = {"diagonal": [0.3, 1.0, 3.0, 10.0], "off_diagonal": [0.0, 1.0]}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        prepared = tukey(base, self.power)
        self._centre = prepared.mean(0)
        self._axes = torch.eye(prepared.shape[1], dtype=torch.float64)
        if prepared.shape[1] > self.dims:  # a thousand 1280 x 1280 covariances would not fit in time or memory
            centred = prepared - self._centre
            self._axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -self.dims :]
        mapped = prepared @ self._axes
        classes = int(labels.max()) + 1
        self._means, inverses, shared = [], [], torch.zeros(mapped.shape[1], mapped.shape[1], dtype=torch.float64)
        for label in range(classes):
            own = mapped[labels == label]
            self._means.append(own.mean(0))
            correlation = self._normalised(own.T.cov() if len(own) > 1 else torch.zeros_like(shared))
            shared += correlation / classes
            inverses.append(torch.linalg.inv(correlation).float())
        self._inverses = inverses
        self._shared = torch.linalg.inv(shared).float()

    def _normalised(self, covariance: Tensor) -> Tensor:
        variance = covariance.diagonal().mean()
        off = (covariance.sum() - covariance.trace()) / (covariance.numel() - len(covariance))
        eye = torch.eye(len(covariance), dtype=torch.float64)
        shrunk = covariance + self.diagonal * variance * eye + self.off_diagonal * off * (1 - eye)
        spread = shrunk.diagonal().clamp_min(1e-12).sqrt()
        return shrunk / spread / spread[:, None]

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        mapped = (tukey(queries, self.power) @ self._axes).float()
        new = (tukey(novel.flatten(0, 1), self.power).view(novel.shape).mean(1) @ self._axes).float()
        columns = []
        means = [*(mean.float() for mean in self._means), *new]
        for mean, inverse in zip(means, [*self._inverses, *[self._shared] * len(new)], strict=True):
            # FeCAM compares directions: both are brought to unit length before the distance is taken
            away = F.normalize(mapped, dim=1) - F.normalize(mean, dim=0)
            columns.append(-((away @ inverse) * away).sum(1))
        return torch.stack(columns, 1)


@dataclass
class RanPac:
    """RanPAC-like (McDonnell et al., 2023): random ReLU features, ridge regression to one-hot targets.

    Class means stand in for the class sums of the paper, which would hardly ever name a class of few images.
    """

    ridge: float = 1e3
    width: int = 1000
    grid: ClassVar[dict[str, list[Any]]] = {"ridge": [1e0, 1e1, 1e2, 1e3, 1e4]}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        generator = torch.Generator().manual_seed(0)
        self._random = torch.randn(base.shape[1], self.width, generator=generator)
        hidden = self._hidden(base)
        self._classes = int(labels.max()) + 1
        gram = (hidden.T @ hidden).double()
        gram.diagonal().add_(self.ridge)
        self._inverse = torch.linalg.inv(gram)
        self._targets = class_means(hidden, labels, self._classes).double()

    def _hidden(self, features: Tensor) -> Tensor:
        return (F.normalize(features.float(), dim=1) @ self._random).relu_()

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        inverse, targets = self._inverse, self._targets
        if len(novel):
            hidden = self._hidden(novel.flatten(0, 1)).double()
            half = inverse @ hidden.T  # Woodbury: the few new images change the inverse little
            inverse = inverse - half @ torch.linalg.solve(torch.eye(len(hidden)).double() + hidden @ half, half.T)
            targets = torch.cat([targets, hidden.view(len(novel), -1, self.width).mean(1)])
        return self._hidden(queries) @ (inverse @ targets.T).float()


@dataclass
class Plda:
    """The two-covariance model."""

    within_shrinkage: float = Constants.within_shrinkage
    between_shrinkage: float = Constants.between_shrinkage
    rescale: bool = True
    within_scale: float = 1.0
    correlation: float = 0.0
    calibration: dict[str, float] | None = None

    def fit(self, base: Tensor, labels: Tensor) -> None:
        constants = {name: value for name, value in asdict(self).items() if name != "calibration"}
        self._model = TwoCovariance.fit(base, labels, **constants)
        mapped = self._model.transform(base)
        self._counts = torch.bincount(labels)
        self._means = class_means(mapped, labels, len(self._counts))

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        new = self._model.transform(novel.flatten(0, 1)).unflatten(0, novel.shape[:2]).mean(1)
        counts = torch.cat([self._counts, self._counts.new_full((len(novel),), novel.shape[1])])
        return self._model.log_ratio(self._model.transform(queries), torch.cat([self._means, new]), counts)


READOUTS: dict[str, type] = {
    "cosine, all": Cosine,
    "cosine, balanced": Cosine,
    "TEEN": Teen,
    "whitened cosine": WhitenedCosine,
    "LDA": Lda,
    "FeCAM-like": FeCam,
    "RanPAC-like": RanPac,
    "PLDA": Plda,
}
FIXED: dict[str, dict[str, Any]] = {"cosine, all": {"balanced": False}, "cosine, balanced": {"balanced": True}}


# Choosing constants on base training images


def judge(readout: Any, base: Tensor, known: Tensor, part: Division) -> list[dict[str, float]]:
    """Figures of one division, for every number of shots and every draw. known: base[part.photos]"""
    readout.fit(known, part.labels[part.photos])
    target = part.labels[part.queries].numpy()
    old, figures = target < len(part.base), []
    queries = base[part.queries]
    alone = readout.scores(queries, base.new_zeros(0, 1, base.shape[1])).max(1).values.numpy()
    for shots, rows in part.shots:
        novel = base[rows].view(len(part.novel), -1, base.shape[1])
        right = readout.scores(queries, novel).argmax(1).numpy() == target
        accuracies = float(right[old].mean()), float(right[~old].mean())
        found = (*accuracies, harmonic_accuracy(*accuracies), auroc(alone[old], alone[~old]))
        figures.append({"shots": shots, **dict(zip(FIGURES[1:], found, strict=True))})
    return figures


def search(name: str, base: Tensor, labels: Tensor, log: Path) -> dict[str, Any]:
    """The constants of a readout with the largest sum of harmonic accuracy and AUROC over the divisions."""
    kind, fixed = READOUTS[name], FIXED.get(name, {})
    if name == "PLDA":
        choice = choose(base, labels)
        for trial in choice.trials:
            append_json_line(log, {"readout": name, **asdict(trial)})
        append_json_line(log, {"readout": name, **{**asdict(choice), "trials": len(choice.trials)}})
        return {**asdict(choice.constants), "calibration": asdict(choice.calibration)}
    cells = [
        {**dict(zip(kind.grid, values, strict=True)), **fixed} for values in itertools.product(*kind.grid.values())
    ]
    found: list[list[dict[str, float]]] = [[] for _ in cells]
    for part in divisions(labels):
        known = base[part.photos]
        for cell, figures in zip(cells, found, strict=True):
            figures += judge(kind(**cell), base, known, part)
    sums = [float(np.mean([one["harmonic"] + one["auroc"] for one in figures])) for figures in found]
    for cell, figures, total in zip(cells, found, sums, strict=True):
        means = {
            f"{k}-shot {key}": round(float(np.mean([one[key] for one in figures if one["shots"] == k])), 4)
            for k in SHOTS
            for key in FIGURES[1:]
        }
        append_json_line(log, {"readout": name, "constants": cell, "objective": round(total, 5), "figures": means})
    return cells[int(np.argmax(sums))]


# Measuring on test images


def walks(
    readout: Any, name: str, parts: dict[str, Tensor], protocol: Protocol, draws: Iterable[Draw]
) -> Iterator[dict[str, Any]]:
    """Figures of every draw and number of shots, the readout being fitted already."""
    train, labels = parts["train"], parts["train_labels"].numpy()
    order = protocol.seen(protocol.sessions)
    place = {label: at for at, label in enumerate(order)}
    keep = np.isin(parts["test_labels"].numpy(), order)
    queries = parts["test"][torch.from_numpy(keep)]
    target = np.array([place[label] for label in parts["test_labels"].numpy()[keep].tolist()])
    base, way = protocol.base_classes, protocol.way
    empty = train.new_zeros(0, 1, train.shape[1])
    first = readout.scores(queries, empty)
    for draw, shots in itertools.product(draws, SHOTS):
        sized = protocol.with_shots(shots)
        rows = [sized.samples(labels, session, draw) for session in range(1, protocol.sessions + 1)]
        novel = train[np.concatenate(rows)].view(-1, shots, train.shape[1])
        whole = None if name == "RanPAC-like" else readout.scores(queries, novel)
        sessions, known_scores, contrasts, asked = [], [], [], []
        for session in range(protocol.sessions + 1):
            seen = base + way * session
            if not session:
                scores = first
            else:
                scores = readout.scores(queries, novel[: way * session]) if whole is None else whole[:, :seen]
            mine = target < seen
            figures = session_scores(scores.argmax(1).numpy()[mine], target[mine], base)
            sessions.append(asdict(figures))
            if session < protocol.sessions:
                best = scores.max(1).values.numpy()
                known_scores.append(auroc(best[mine], best[~mine]))
                if isinstance(readout, Cosine):
                    led = contrast(Evidence(scores)).numpy()
                    contrasts.append(auroc(led[mine], led[~mine]))
                if isinstance(readout, Plda) and readout.calibration:
                    asked.append((scores, torch.from_numpy(np.where(mine, target, -1))))
        last = sessions[-1]
        yield {
            "shots": shots,
            "draw": draw,
            **{key: last[key] for key in FIGURES[:4]},
            "session 0": sessions[0]["average"],
            "auroc": float(np.mean(known_scores)),
            **({"auroc, contrast": float(np.mean(contrasts))} if contrasts else {}),
            **({"ece": calibration_error([(asked, ProbabilityCalibration(**readout.calibration))])} if asked else {}),
            "sessions": [one["average"] for one in sessions],
            "aurocs": known_scores,
        }


def compare(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    parts, about = load_tensors(options.features)
    settings = about["protocol"]
    protocol = Protocol(settings["base_classes"], settings["way"], settings["sessions"])
    mine = parts["train_labels"] < protocol.base_classes
    base, labels = parts["train"][mine], parts["train_labels"][mine]
    chosen: dict[str, Any] = json.loads(options.constants.read_text()) if options.constants else {}
    draws: list[Draw] = ["published", *range(options.draws)]
    path = options.out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"features": about, "readouts": {}}
    for name in options.readouts.split(";") if options.readouts else READOUTS:
        start = perf_counter()
        constants = chosen[name] if name in chosen else search(name, base, labels, options.out / "trials.jsonl")
        searched = perf_counter() - start
        readout = READOUTS[name](**constants)
        readout.fit(base, labels)
        found = list(walks(readout, name, parts, protocol, draws))
        given = "given" if name in chosen else "chosen"
        results["readouts"][options.label or name] = {
            "constants": constants,
            "how": given,
            "seconds": round(searched, 1),
            "walks": found,
        }
        results["machine"] = machine()
        write_json(path, results)
        print(name, constants, f"{searched:.0f} s + {perf_counter() - start - searched:.0f} s", flush=True)
    write_text(options.out / "table.md", table(results))
    print(table(results))


def table(results: dict[str, Any]) -> str:
    """Percentages: the published draw; mean and 95% interval of seeded ones; paired gain over the balanced cosine."""
    lines = []
    reference = results["readouts"].get("cosine, balanced")
    for shots in SHOTS:
        heads = [f"{key}" for key in FIGURES]
        lines += [
            f"### {shots}-shot",
            "",
            f"| | published: {' / '.join(heads)} | {' | '.join(heads)} | harmonic gain | average gain | AUROC gain |",
            f"| --- | --- | {' | '.join(['---:'] * (len(heads) + 3))} |",
        ]
        for name, entry in results["readouts"].items():
            some = [one for one in entry["walks"] if one["shots"] == shots]
            fixed = next(one for one in some if one["draw"] == "published")
            seeded = [one for one in some if one["draw"] != "published"] or [fixed]
            cells = [_interval([100 * one[key] for one in seeded]) for key in FIGURES]
            if "auroc, contrast" in fixed:
                cells[-1] += f" (contrast {100 * np.mean([one['auroc, contrast'] for one in seeded]):.1f})"
            gains = []
            for key in ("harmonic", "average", "auroc"):
                if not reference:
                    gains.append("")
                    continue
                before = {one["draw"]: one for one in reference["walks"] if one["shots"] == shots}
                gains.append(_interval([100 * (one[key] - before[one["draw"]][key]) for one in seeded], "+"))
            first = " / ".join(f"{100 * fixed[key]:.1f}" for key in FIGURES)
            lines.append(f"| {name} | {first} | {' | '.join(cells + gains)} |")
        lines.append("")
    lines += ["Constants:", ""]
    for name, entry in results["readouts"].items():
        lines.append(f"- {name} ({entry['how']}): {json.dumps(entry['constants'])}")
    return "\n".join(lines) + "\n"


def _interval(values: list[float], sign: str = "") -> str:
    mean, half = mean_and_interval(values)
    return f"{mean:{sign}.1f}" + (f" ± {half:.1f}" if half is not None else "")


def extract(options: argparse.Namespace) -> None:
    """All training and test images of a recipe's data, through its initial network or a run's trained one."""
    run = Path(options.recipe)
    if (run / "config.toml").exists():
        config = load_recipe(str(run / "config.toml"), options.set)
        backbone = backbone_of(config, blank=True)
        weights, _ = load_tensors(options.weights or run / "weights.safetensors")
        prefix = "network.backbone."  # a checkpoint holds more than the backbone
        inside = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        backbone.load_state_dict(inside or weights)
    else:
        config = load_recipe(options.recipe, options.set)
        backbone = backbone_of(config)
    dataset = dataset_of(config, options.data)
    protocol = protocol_of(config, dataset)
    extractor = FeatureCache(backbone.eval(), preprocess_of(config), torch.device("cpu"), batch=64)
    tensors = {}
    for name, images in (("train", dataset.train), ("test", dataset.test)):
        tensors[name], tensors[f"{name}_labels"] = extractor(images), torch.from_numpy(images.labels.copy())
    settings = {"base_classes": protocol.base_classes, "way": protocol.way, "sessions": protocol.sessions}
    about = {"data": dataset.name, "backbone": config.model.backbone, "protocol": settings}
    save_tensors(options.out, tensors, about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    encode = verbs.add_parser("extract")
    encode.add_argument("recipe", help="a recipe, or a run folder")
    encode.add_argument("--data", type=Path)
    encode.add_argument("--weights", type=Path, help="of a run folder, in place of its own: a checkpoint will do")
    encode.add_argument("--set", action="append", default=[])
    encode.add_argument("--out", type=Path, required=True)
    encode.set_defaults(do=extract)
    measure = verbs.add_parser("compare")
    measure.add_argument("features", type=Path)
    measure.add_argument("--out", type=Path, required=True)
    measure.add_argument("--draws", type=int, default=10)
    measure.add_argument("--readouts", help=f"some of {'; '.join(READOUTS)}, parted by semicolons")
    measure.add_argument("--constants", type=Path, help="JSON, readout -> constants to use instead of choosing them")
    measure.add_argument("--label", help="name of the row in the table, where one readout is measured")
    measure.set_defaults(do=compare)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.do(options)


if __name__ == "__main__":
    main()
