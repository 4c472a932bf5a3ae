"""Where the time of a training step goes: its share by kind of operation, and how near convolutions come to the peak.

Also what a 3 x 3 convolution of each stage achieves on its own, forward and in the two halves of its backward pass.

    python benchmarks/speed_profile.py --width 16 32 64 --out results/speed-profile.md

The step is that of `make bench` (batch 128, two views, four mixtures), seen by torch's profiler. The peak is a large
matrix product's, in the same process. Leave the machine alone meanwhile.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from speed_baselines import matmul
from speed_ours import Step, operations_per_image
from torch.profiler import ProfilerActivity, profile

from fscil.runtime.allocator import tune_allocator
from fscil.runtime.files import write_text
from fscil.training.run_folder import machine

KINDS = {
    "convolution": ("convolution",),
    "BatchNorm": ("batch_norm",),
    "ReLU": ("relu", "threshold"),
    "matrix products of projection and classifier": ("addmm", "::mm", "linear"),
    "views and mixtures": ("grid_sampler", "index", "lerp", "permute", "gather", "arange", "clamp"),
    "sums of shortcuts and gradients": ("aten::add",),
    "optimizer": ("foreach", "optimizer"),
}
OTHER = "everything else"
CONVOLUTION_KINDS = ("forward", "gradient of the images", "gradient of the weights")
ROUNDS = 7  # of a convolution alone


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), OTHER)


def shares(width: int, batch: int, hidden: int) -> tuple[Counter[str], float, float]:
    """Seconds by kind of operation, seconds of the step, and operations per second in its convolutions."""
    step = Step(width, batch, steps=1, hidden=hidden)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        seconds = step()
    by_kind: Counter[str] = Counter()
    for event in found.key_averages():
        by_kind[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    by_kind[OTHER] += max(0.0, seconds - by_kind.total())
    convolutions = operations_per_image(step.network.backbone, 32) * step.passed
    return by_kind, seconds, convolutions / by_kind["convolution"]


def convolution_rates(width: int, stage: int, batch: int) -> list[float]:
    """Operations per second of a stage's convolution on 32 x 32 pixels, one for each of CONVOLUTION_KINDS.

    Counted as if padding were pixels: where the images are small, that is more than is done.
    """
    channels, side = width * 2**stage, 32 // 2**stage
    images, gradient = (
        torch.rand(batch, channels, side, side).contiguous(memory_format=torch.channels_last) for _ in range(2)
    )
    weight = torch.rand(channels, channels, 3, 3).contiguous(memory_format=torch.channels_last)

    def backward(of_images: bool) -> Callable[[], object]:
        shape: tuple[Any, ...] = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [of_images, not of_images, False])
        return lambda: torch.ops.aten.convolution_backward(gradient, images, weight, *shape)

    work = lambda: torch.nn.functional.conv2d(images, weight, padding=1), backward(True), backward(False)
    operations = 2 * images.numel() * weight[0].numel()
    return [operations / _seconds(each) for each in work]


def _seconds(work: Callable[[], object]) -> float:
    work()
    found = []
    for _ in range(ROUNDS):
        began = perf_counter()
        work()
        found.append(perf_counter() - began)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=2048, help="size of the projection (default: %(default)s)")
    parser.add_argument("--matmul", type=int, default=4096, help="size of the matrix product (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    given = parser.parse_args()
    tune_allocator()
    product = matmul(given.matmul)
    peak = max(product()["flops"] for _ in range(5))
    columns = {width: shares(width, given.batch, given.hidden) for width in given.width}
    lines = [f"| share of the step | {' | '.join(f'width {width}' for width in columns)} |"]
    lines += ["|---|" + "---:|" * len(columns)]
    for kind in (*KINDS, OTHER):
        cells = (f"{by_kind[kind] / by_kind.total():.0%}" for by_kind, _, _ in columns.values())
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines.append(f"| seconds of the step | {' | '.join(f'{seconds:.2f}' for _, seconds, _ in columns.values())} |")
    cells = (f"{rate / peak:.0%}" for _, _, rate in columns.values())
    lines.append(f"| operations per second in the convolutions, of the peak | {' | '.join(cells)} |")
    lines += [
        "",
        "| 3 x 3 convolution alone, of the peak | forward | gradient of the images | gradient of the weights |",
    ]
    lines += ["|---|---:|---:|---:|"]
    for width in given.width:
        for stage in range(4):
            cells = (f"{rate / peak:.0%}" for rate in convolution_rates(width, stage, given.batch))
            where = f"width {width}, {width * 2**stage} channels of {32 // 2**stage} x {32 // 2**stage}"
            lines.append(f"| {where} | {' | '.join(cells)} |")
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    text = f"{about}; peak {peak / 1e9:.0f} GFLOP/s.\n\n" + "\n".join(lines) + "\n"
    print(text, end="")
    if given.out:
        write_text(given.out, text)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
