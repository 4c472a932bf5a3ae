"""Synthesized features on a mixture of subspaces (Cheraghian et al., ICCV 2021): old classes are dreamt, not kept."""

import copy
from collections.abc import Sequence

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.feature_training import fit, standardised
from fscil.methods.learner import Learner, check_numbers
from fscil.methods.pretraining import plain_recipe
from fscil.training import Trainer, load_state
from fscil.words import class_vectors

EPOCHS, BATCH, RATE = 50, 128, 1e-3
VAE_EPOCHS = 50
SESSION_RATE = 1e-3
VAE_SESSION_RATE = 1e-4
RANK = 32
SHARP = 10.0
HIDDEN = 256
LATENT = 64
KL = 1.0
TEMPERATURE = 2.0
DISTILLATION = 1.0
SOURCE = "both"
SYNTH = None
VAE_UPDATE=True


class MixtureOfSubspaces(nn.Module):
    def __init__(self, means: Tensor, bases: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.means, self.bases, self.spread = means, bases, spread

    @classmethod
    def fitted(cls, features, count, seed):
        found = KMeans(count, n_init=3, random_state=seed).fit(features.numpy())
        labels = torch.from_numpy(found.labels_)
        d = features.shape[1]
        means, bases = [], []
        for k in range(count):
            own = features[labels == k]
            mean = own.mean(0)
            _, _, right = torch.linalg.svd(own - mean, full_matrices=False)
            basis = torch.zeros(d, min(RANK, d))
            r = min(min(RANK, d), len(right))
            basis[:, :r] = right[:r].T
            means.append(mean); bases.append(basis)
        m = cls(torch.stack(means), torch.stack(bases), torch.tensor(1.0))
        c, res = m.coordinates(features)
        m.spread = res.amin(1).mean()
        return m

    def coordinates(self, x):
        c = torch.einsum("nd,kdr->nkr", x, self.bases) - torch.einsum("kd,kdr->kr", self.means, self.bases)
        dist = torch.cdist(x, self.means).square()
        return c, (dist - c.square().sum(2)).clamp(min=0)

    def forward(self, x):
        c, res = self.coordinates(x)
        w = (-SHARP * res / self.spread).softmax(1)
        if SOURCE == "recon":
            p = self.means + torch.einsum("nkr,kdr->nkd", c, self.bases)
            return torch.einsum("nk,nkd->nd", w, p)
        h = (w[..., None] * c).flatten(1)
        if SOURCE == "both": return torch.cat([x, h], 1)
        if SOURCE == "g": return x
        if SOURCE == "resid":
            p = self.means + torch.einsum("nkr,kdr->nkd", c, self.bases)
            return torch.cat([x, torch.einsum("nk,nkd->nd", w, p)],1)
        return torch.cat([h, w], 1)


class VAE(nn.Module):
    def __init__(self, d, wd):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d + wd, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT + wd, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, d))

    def loss(self, x, s, noise):
        mean, logvar = self.encoder(torch.cat([x, s], 1)).chunk(2, 1)
        z = mean + noise * (logvar / 2).exp()
        again = self.decoder(torch.cat([z, s], 1))
        rec = (again - x).square().sum(1)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1)
        return (rec + KL * kl).mean()


def distillation(scores, old):
    return TEMPERATURE**2 * F.kl_div((scores[:, : old.shape[1]] / TEMPERATURE).log_softmax(1), (old / TEMPERATURE).log_softmax(1), log_target=True, reduction="batchmean")


class Synthesized:
    def __init__(self, config, trainer, class_names=()):
        self.config, self.trainer = config, trainer
        self.all = F.normalize(torch.from_numpy(class_vectors("synthesized", config.data.word_vectors, class_names)))
        self.network = Learner(self.base_recipe(config), trainer)
        self.n = 0

    @staticmethod
    def base_recipe(config):
        return plain_recipe(config, "linear")

    def fit_base(self, base, shots):
        self.network.fit_base(base)
        self.n = len(base.counts)
        torch.manual_seed(self.config.train.seed)
        x, y = standardised(self.network.features(base)), torch.from_numpy(base.labels)
        self.sub = MixtureOfSubspaces.fitted(x, round(self.n**0.5), self.config.train.seed)
        d, wd = x.shape[1], self.all.shape[1]
        h = self.sub(x)
        self.map = nn.Sequential(nn.Linear(h.shape[1], 512), nn.LeakyReLU(), nn.Linear(512, wd))
        self.vae = VAE(d, wd)
        g = torch.Generator().manual_seed(self.config.train.seed)
        w = self.all[: self.n]
        fit(self.map.parameters(), lambda: (h, y), lambda a, b: F.cross_entropy(self.map(a) @ w.T, b), EPOCHS, RATE, BATCH, g, self.trainer, "map")
        fit(self.vae.parameters(), lambda: (x, y), lambda a, b: self.vae.loss(a, w[b], torch.randn(len(a), LATENT, generator=g)), VAE_EPOCHS, RATE, BATCH, g, self.trainer, "vae")

    @torch.no_grad()
    def synth(self, classes, each, g):
        y = torch.arange(classes).repeat_interleave(each)
        z = torch.randn(len(y), LATENT, generator=g)
        return self.vae.decoder(torch.cat([z, self.all[y]], 1)), y

    def learn(self, new):
        x, y = standardised(self.network.features(new)), torch.from_numpy(new.labels)
        old, first = copy.deepcopy(self.map), self.n
        self.n += len(new.counts)
        w = self.all[: self.n]
        g = torch.Generator().manual_seed(self.config.train.seed * 1000 + first)
        k = SYNTH or max(new.counts.values())
        def draw():
            a, b = self.synth(first, k, g)
            return torch.cat([x, a]), torch.cat([y, b])
        def loss(a, b):
            h = self.sub(a)
            s = self.map(h) @ w.T
            with torch.no_grad(): o = old(h) @ w[:first].T
            return F.cross_entropy(s, b) + DISTILLATION * distillation(s, o)
        e = self.config.incremental.epochs
        fit(self.map.parameters(), draw, loss, e, SESSION_RATE, self.config.incremental.batch, g, self.trainer, "map")
        if VAE_UPDATE:
            teacher = copy.deepcopy(self)
            def draw2():
                a, b = teacher.synth(first, k, g)
                return torch.cat([x, a]), torch.cat([y, b])
            fit(self.vae.parameters(), draw2, lambda a, b: self.vae.loss(a, w[b], torch.randn(len(a), LATENT, generator=g)), e, VAE_SESSION_RATE, self.config.incremental.batch, g, self.trainer, "vae")

    @torch.inference_mode()
    def scores(self, images):
        return self.map(self.sub(standardised(self.network.features(images)))) @ self.all[: self.n].T

    def alternatives(self, images):
        return {}

    def memory(self):
        return Memory()
