"""What evaluates the network fastest on this machine: torch as it comes, folded, frozen, onnxruntime, OpenVINO.

    python benchmarks/engines.py [--backbone efficientnet_lite0] [--size 224] [--batches 1 4 8 32] [--threads 2]

Milliseconds per image, wall time and CPU time of the process, each the median of rounds in which every engine has its
turn; and how far features are from torch's, as a share of the largest. Engines that are not installed are left out;
fscil itself uses the third and the fifth.
"""

import argparse
import copy
import io
import platform
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

from fscil.models import build_backbone, folded
from fscil.models.engines import OPSET, OnnxNetwork

Run = Callable[[Tensor], Tensor]


def frozen(network: nn.Module, sample: Tensor) -> Run:
    traced = torch.jit.trace(copy.deepcopy(network), sample)
    run: Run = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    return run


def openvino(network: nn.Module, sample: Tensor, threads: int) -> Run:
    import openvino as ov

    file = io.BytesIO()
    axes = {"images": {0: "batch"}}
    torch.onnx.export(
        network, (sample,), file, input_names=["images"], dynamic_axes=axes, opset_version=OPSET, dynamo=False
    )
    file.seek(0)
    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(file), "CPU", settings)
    return lambda images: torch.from_numpy(next(iter(compiled([images.numpy()]).values())))


def engines(name: str, size: int, threads: int) -> dict[str, Run]:
    backbone = build_backbone(name).eval()
    plain = folded(backbone)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    sample = torch.zeros(2, 3, size, size)
    found: dict[str, Run] = {
        "torch, as it comes": backbone,
        "torch, BatchNorm folded": plain,
        "torch, folded, channels last": lambda images: last(images.contiguous(memory_format=torch.channels_last)),
        "torch, traced, frozen, optimize_for_inference": frozen(plain, sample),
    }
    if find_spec("onnxruntime") and find_spec("onnx"):
        found["onnxruntime"] = OnnxNetwork(last, size)
    if find_spec("openvino"):
        found["OpenVINO"] = openvino(plain, sample, threads)
    return found


def measured(runs: dict[str, Run], images: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """Medians of wall and CPU milliseconds per image."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            wall, cpu = perf_counter(), process_time()
            run(images)
            if number:  # the first one prepares
                times[name].append((perf_counter() - wall, process_time() - cpu))
    return {
        name: (
            1000 * median(each[0] for each in taken) / len(images),
            1000 * median(each[1] for each in taken) / len(images),
        )
        for name, taken in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    images = torch.randn(max(given.batches), 3, given.size, given.size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        runs = engines(given.backbone, given.size, given.threads)
        expected = runs["torch, as it comes"](images[:8])
        apart = {
            name: float((run(images[:8]) - expected).abs().max() / expected.abs().max()) for name, run in runs.items()
        }
        columns = {batch: measured(runs, images[:batch], given.rounds) for batch in given.batches}
    print(
        f"{given.backbone}, {given.size} pixels, {given.threads} threads, {platform.machine()}, "
        f"torch {torch.__version__}, Python {sys.version.split()[0]}. Milliseconds per image, wall (CPU):\n"
    )
    print("| engine | " + " | ".join(f"batch {batch}" for batch in columns) + " | difference |")
    print("|---|" + "---:|" * (len(columns) + 1))
    for name in runs:
        cells = [f"{wall:.1f} ({cpu:.1f})" for wall, cpu in (column[name] for column in columns.values())]
        print(f"| {name} | {' | '.join(cells)} | {apart[name]:.0e} |")


if __name__ == "__main__":
    main()
