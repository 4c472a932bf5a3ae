"""ALICE's base training as its description reads, one image at a time: what the benchmarks compare with.

Nothing here is written for the batch: Pillow varies each image twice in the workers of a DataLoader, a Python loop
mixes pair after pair, another adds up the loss row by row, and each view passes an ordinary ResNet-18 in torch's
default layout. It shares no code with fscil; its parameters have the same names, so that it serves as an oracle too.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SCALE, MARGIN = 30.0, 0.4
MIXES = 4
WORKERS = 2


# Views, one Pillow image at a time


def random_resized_crop(image: Image.Image, size: int) -> Image.Image:
    """A box of 0.2 to 1 of the area, with an aspect of 3/4 to 4/3, resized; the whole image where ten draws miss it."""
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.2, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            image = image.crop((left, top, left + wide, top + high))
            break
    return image.resize((size, size), Image.Resampling.BILINEAR)


def turn_hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue, np.int16) + round(turns * 255)
    return Image.merge("HSV", (Image.fromarray((turned % 256).astype(np.uint8)), saturation, value)).convert("RGB")


def colour_jitter(image: Image.Image) -> Image.Image:
    changes: list[Callable[[Image.Image], Image.Image]] = [
        lambda picture: ImageEnhance.Brightness(picture).enhance(random.uniform(0.6, 1.4)),
        lambda picture: ImageEnhance.Contrast(picture).enhance(random.uniform(0.6, 1.4)),
        lambda picture: ImageEnhance.Color(picture).enhance(random.uniform(0.6, 1.4)),
        lambda picture: turn_hue(picture, random.uniform(-0.1, 0.1)),
    ]
    random.shuffle(changes)
    for change in changes:
        image = change(image)
    return image


def to_tensor(image: Image.Image) -> Tensor:
    """(3, h, w) float, normalised."""
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
    return (values - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def view(image: Image.Image, size: int, resize: int | tuple[int, int] | None = None) -> Tensor:
    """resize: first to this short side, or to this height and width, as for photos larger than the crop."""
    if isinstance(resize, int):
        short = min(image.size)
        image = image.resize((image.width * resize // short, image.height * resize // short), Image.Resampling.BILINEAR)
    elif resize is not None:
        image = image.resize(resize[::-1], Image.Resampling.BILINEAR)
    image = random_resized_crop(image, size)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if random.random() < 0.8:
        image = colour_jitter(image)
    if random.random() < 0.2:
        image = image.convert("L").convert("RGB")
    return to_tensor(image)


class TwoViews(Dataset[tuple[Tensor, Tensor, int]]):
    """Two views of each image. Images: (n, h, w, 3) uint8, or files that are decoded each time."""

    def __init__(
        self,
        images: np.ndarray | Sequence[str],
        labels: Sequence[int],
        size: int,
        resize: int | tuple[int, int] | None = None,
    ) -> None:
        self.images, self.labels, self.size, self.resize = images, labels, size, resize

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        source = self.images[number]
        image = Image.open(source).convert("RGB") if isinstance(source, str) else Image.fromarray(source)
        return view(image, self.size, self.resize), view(image, self.size, self.resize), int(self.labels[number])


def loader_of(views: TwoViews, batch: int) -> DataLoader:
    """Its workers live as long as it does."""
    return DataLoader(
        views,
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


# Class augmentation, one pair at a time


def pair_label(a: int, b: int, classes: int) -> int:
    a, b = min(a, b), max(a, b)
    return classes + a * (2 * classes - a - 1) // 2 + (b - a) - 1


def choose_pairs(labels: Tensor, mixes: int = MIXES) -> list[tuple[int, int, float]]:
    """Who is mixed with whom, and the share of the first: each image with one of another class in each permutation."""
    pairs = []
    for _ in range(mixes):
        permutation = torch.randperm(len(labels))
        for i in range(len(labels)):
            j = int(permutation[i])
            if labels[i] != labels[j]:
                pairs.append((i, j, random.uniform(0.4, 0.6)))
    return pairs


def mix(
    first: Tensor, second: Tensor, labels: Tensor, classes: int, pairs: Sequence[tuple[int, int, float]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Both views, (n, 3, h, w) each, and the labels, joined by those of the pairs."""
    mixed_first, mixed_second, mixed_labels = [], [], []
    for i, j, share in pairs:
        mixed_first.append(share * first[i] + (1 - share) * first[j])
        mixed_second.append(share * second[i] + (1 - share) * second[j])
        mixed_labels.append(pair_label(int(labels[i]), int(labels[j]), classes))
    if not pairs:
        return first, second, labels
    return (
        torch.cat([first, torch.stack(mixed_first)]),
        torch.cat([second, torch.stack(mixed_second)]),
        torch.cat([labels, torch.tensor(mixed_labels)]),
    )


# The network


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """(n, 3, h, w) -> (n, 8 * width), with the stem for small images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


class Network(nn.Module):
    """Backbone, projection, and the cosines to one weight vector for each class and each pair of classes."""

    def __init__(self, width: int, classes: int, hidden: int = 2048) -> None:
        super().__init__()
        self.backbone = ResNet18(width)
        self.projection = nn.Sequential(
            nn.Linear(8 * width, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden, affine=False),
        )
        self.head = nn.Linear(hidden, classes + classes * (classes - 1) // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected = F.normalize(self.projection(self.backbone(x)), dim=1)
        return F.linear(projected, F.normalize(self.head.weight, dim=1))


# Loss and step


def angular_loss(cosine: Tensor, labels: Tensor, scale: float = SCALE, margin: float = MARGIN) -> Tensor:
    """(n, outputs), (n,): the mean over the rows, taken one by one."""
    total = cosine.new_zeros(())
    for row in range(len(labels)):
        scores = cosine[row].clone()
        scores[labels[row]] -= margin
        total = total - F.log_softmax(scale * scores, dim=0)[labels[row]]
    return total / len(labels)


def optimizer_of(network: nn.Module, rate: float = 0.01) -> torch.optim.SGD:
    return torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True)


def batch_loss(
    network: nn.Module,
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    classes: int,
    pairs: Sequence[tuple[int, int, float]],
) -> Tensor:
    first, second, labels = mix(first, second, labels, classes, pairs)
    return (angular_loss(network(first), labels) + angular_loss(network(second), labels)) / 2


def train_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    classes: int,
) -> Iterator[float]:
    """The loss of each step, as it is done."""
    network.train()
    for first, second, labels in batches:
        optimizer.zero_grad()
        loss = batch_loss(network, first, second, labels, classes, choose_pairs(labels))
        loss.backward()
        optimizer.step()
        yield loss.item()
