"""iCaRL (Rebuffi et al., CVPR 2017): a few exemplars per class, chosen by herding, for rehearsal and as classifier.

A session is learned from its images and all exemplars, with distillation on the old outputs. The outputs only train the
features: a class is the mean feature of its exemplars under the current network.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.gallery import class_means, cosine_scores
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.rehearsal import RehearsalMethod


class ICarl(RehearsalMethod):
    """Keeps the exemplars; class means are computed from them."""

    title = "iCaRL"
    table_order = 20

    def learn(self, new: Images) -> None:
        before = self.network.frozen_copy()
        first = self.grow(new)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            scores = self.network(views)
            return F.cross_entropy(scores, labels) + distillation(scores[:, :first], before(views))

        self.train(self.with_exemplars(new), loss, seed=first)
        self.keep_exemplars(new)

    def means(self) -> Tensor:
        """(classes, d), of the exemplars' normalised features."""
        features = F.normalize(self.network.features(self.exemplars))
        return class_means(features, torch.from_numpy(self.exemplars.labels), self.network.head.out_features)

    def scores(self, images: Images) -> Tensor:
        return cosine_scores(self.network.features(images), self.means())
