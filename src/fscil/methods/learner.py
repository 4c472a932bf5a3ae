"""A network that goes on learning, as a method holds it: backbone and classifier, trained, measured, saved together."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError, StoreError
from fscil.features import FeatureExtractor
from fscil.methods.parts import backbone_of, preprocess_of
from fscil.methods.pretraining import pretrain
from fscil.models import CosineHead
from fscil.training import Trainer, load_state


class Learner:
    """Frozen in eval mode, BatchNorm statistics included; what trains it decides which parameters move."""

    def __init__(self, config: Config, trainer: Trainer) -> None:
        """config: the recipe of base training."""
        self.config, self.trainer = config, trainer
        finished = trainer.run is not None and trainer.run.finished
        self.backbone = backbone_of(config, blank=finished).to(trainer.device)
        self.features = FeatureExtractor(self.backbone, preprocess_of(config), trainer.device, quiet=trainer.quiet)
        self.head = self._head(1)  # until the base classes are known

    def _head(self, outputs: int) -> nn.Linear:
        kind = CosineHead if self.config.model.head == "cosine" else nn.Linear
        return kind(self.backbone.feature_dim, outputs).to(self.trainer.device)

    def fit_base(self, base: Images) -> None:
        run = self.trainer.run
        if run and run.finished and not run.head.is_file():
            raise StoreError(f"{run.folder} keeps no classifier to go on with. Train it again.")
        head = pretrain(self.config, self.trainer, self.backbone, base).head
        assert isinstance(head, nn.Linear)
        self.head = head
        self.settle()

    def settle(self) -> None:
        """After training: features of before are no longer valid."""
        self.backbone.eval()
        self.features.forget()

    def __call__(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, classes), as it is trained."""
        scores: Tensor = self.head(self.backbone(images))
        return scores

    @torch.inference_mode()
    def scores(self, images: Images) -> Tensor:
        """(n, classes) on the host, from features computed once."""
        found: Tensor = self.head(self.features(images).to(self.head.weight.device)).float().cpu()
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


def check_numbers(new: Images, first: int) -> None:
    """The classes of a session must follow those seen before it."""
    expected: Sequence[int] = range(first, first + len(new.counts))
    if sorted(new.counts) != list(expected):
        raise ProtocolError(f"the next new classes must be numbered from {first}; got {sorted(new.counts)}.")
