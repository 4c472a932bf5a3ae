"""Decision rules compared on the same frozen features: of a run as `fscil study readout` does, and of other networks.

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out F.safetensors
    python benchmarks/readout.py extract RUN --out F.safetensors [--data DIR] [--weights FILE]
    python benchmarks/readout.py compare F.safetensors --out FOLDER [--draws 10] [--readouts "cosine, all;PLDA"]

`extract` encodes every image once: a recipe's initial network, or that of a run folder or of its checkpoint. `compare`
takes these or a file of `fscil features`, and writes results.json, provenance.json, trials.jsonl and table.md.
"""

import argparse
import json
from pathlib import Path

import torch

from fscil.config import load_recipe
from fscil.experiments.feature_files import described
from fscil.experiments.provenance import PROVENANCE, data_fingerprint
from fscil.experiments.readout import compare
from fscil.features import FeatureCache
from fscil.methods.toolkit.readouts import READOUTS
from fscil.report.readout_table import readout_table
from fscil.runtime.files import load_tensors, read_json, save_tensors, write_text
from fscil.training.build import backbone_of, dataset_of, preprocess_of, protocol_of


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
    seen = protocol.seen(protocol.sessions)
    extractor = FeatureCache(backbone.eval(), preprocess_of(config), torch.device("cpu"), batch=64)
    tensors = {}
    for name, images in (("train", dataset.train), ("test", dataset.test)):
        mine = images.of_classes(seen).relabel(seen)
        tensors[name], tensors[f"{name}_labels"] = extractor(mine), torch.from_numpy(mine.labels)
    save_tensors(options.out, tensors, described(config, dataset, protocol, data_fingerprint(dataset)))


def measure(options: argparse.Namespace) -> None:
    parts, about = load_tensors(options.features)
    results = compare(
        parts,
        about,
        options.out,
        lambda text: print(text, flush=True),
        options.draws,
        readouts=options.readouts.split(";") if options.readouts else (),
        constants=json.loads(options.constants.read_text()) if options.constants else None,
        label=options.label or "",
    )
    table = readout_table(results, read_json(options.out / PROVENANCE))
    write_text(options.out / "table.md", table)
    print(table)


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
    judge = verbs.add_parser("compare")
    judge.add_argument("features", type=Path)
    judge.add_argument("--out", type=Path, required=True)
    judge.add_argument("--draws", type=int, default=10)
    judge.add_argument("--readouts", help=f"some of {'; '.join(READOUTS)}, parted by semicolons")
    judge.add_argument("--constants", type=Path, help="JSON, readout -> constants to use instead of choosing them")
    judge.add_argument("--label", help="name of the row in the table, where one readout is measured")
    judge.set_defaults(do=measure)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.do(options)


if __name__ == "__main__":
    main()
