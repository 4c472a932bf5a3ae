"""A network that goes on learning, as a method holds it: backbone and classifier, trained, measured, saved together."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError, StoreError
from fscil.features import FeatureExtractor
from fscil.methods.toolkit.distillation import frozen
from fscil.models import CosineHead
from fscil.training.base_training import PLAIN_SCALE, pretrain
from fscil.training.build import backbone_of, preprocess_of
from fscil.training.loop import Trainer, load_state


class Learner:
    """Frozen in eval mode, BatchNorm statistics included; what trains it decides which parameters move."""

    def __init__(self, config: Config, trainer: Trainer) -> None:
        """config: the recipe of base training."""
        self.config, self.trainer = config, trainer
        finished = trainer.run is not None and trainer.run.finished
        self.backbone = backbone_of(config, blank=finished).to(trainer.device)
        self.features = FeatureExtractor(self.backbone, preprocess_of(config), trainer.device, quiet=trainer.quiet)
        self.head = self._head(1)  # until the base classes are known

    def _head(self, outputs: int) -> CosineHead:
        return CosineHead(self.backbone.feature_dim, outputs).to(self.trainer.device)

    def fit_base(self, base: Images) -> None:
        run = self.trainer.run
        if run and run.finished and not run.head.is_file():
            raise StoreError(f"{run.folder} keeps no classifier to go on with. Train it again.")
        head = pretrain(self.config, self.trainer, self.backbone, base).head
        assert isinstance(head, CosineHead)
        self.head = head
        self.settle()

    def settle(self) -> None:
        """After training: features of before are no longer valid."""
        self.backbone.eval()
        self.features.forget()

    def __call__(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, classes), as it is trained."""
        return self.classify(self.backbone(images))

    def classify(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, classes): cosines, at the scale of base training"""
        scores: Tensor = PLAIN_SCALE * self.head(features)
        return scores

    def frozen(self) -> Callable[[Tensor], Tensor]:
        """The network as it is now, for others to learn from: (n, 3, h, w) -> (n, classes)"""
        copy = frozen(self.backbone, self.head)
        return lambda images: PLAIN_SCALE * copy(images)

    def grow(self, new: Images) -> int:
        """An output for each new class: a random direction, as long as the old ones. Returns the first one's number."""
        old = self.head.weight.detach()
        first, count = len(old), len(new.counts)
        check_numbers(new, first)
        generator = torch.Generator().manual_seed(first + 1_000_003 * self.config.train.seed)
        random = torch.randn(count, old.shape[1], generator=generator).to(old.device)
        self.head = self._head(first + count)
        self.head.weight.data.copy_(torch.cat([old, random / random.norm(dim=1, keepdim=True) * mean_length(old)]))
        return first

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        """(n, classes) cosines on the host, from features computed once."""
        found: Tensor = self.head(self.features(images).to(self.head.weight.device)).cpu()
        return found

    def parameters(self) -> list[nn.Parameter]:
        return [*self.backbone.parameters(), *self.head.parameters()]

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*"""
        return {
            f"{part}.{name}": value.detach().cpu().clone()
            for part, module in (("backbone", self.backbone), ("head", self.head))
            for name, value in module.state_dict().items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"backbone": {}, "head": {}}
        for name, value in state.items():
            part, _, rest = name.partition(".")
            if part in parts:
                parts[part][rest] = value
        self.head = self._head(len(parts["head"]["weight"]))
        load_state(self.head, parts["head"], "the state")
        own = self.backbone.state_dict()
        if any(not torch.equal(own[name].cpu(), value.cpu()) for name, value in parts["backbone"].items()):
            load_state(self.backbone, parts["backbone"], "the state")
            self.settle()


def mean_length(vectors: Tensor) -> Tensor:
    """Of (n, d). A cosine does not see how long a class vector is, but the size of a step of SGD hangs on it."""
    length: Tensor = vectors.norm(dim=1).mean()
    return length


def check_numbers(new: Images, first: int) -> None:
    """The classes of a session must follow those seen before it."""
    expected: Sequence[int] = range(first, first + len(new.counts))
    if sorted(new.counts) != list(expected):
        raise ProtocolError(f"the next new classes must be numbered from {first}; got {sorted(new.counts)}.")
