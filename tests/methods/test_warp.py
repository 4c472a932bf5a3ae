"""WaRP against its paper: what is frozen does not move, what is not learns, classes are means."""

import numpy as np
import torch
from naive import BASE, cosine, fitted, mean, session

from fscil.methods import warp
from fscil.methods.warp import Warp


def rotated_weights(method):
    return {name: part.rotated(part.layer.weight.detach()).clone() for name, part in method.layers.items()}


def test_frozen_weights_do_not_move_and_others_learn():
    method = fitted("warp", "incremental.lr=0.1", "incremental.steps=5")
    before, frozen = rotated_weights(method), {name: part.frozen.clone() for name, part in method.layers.items()}
    assert list(before) == ["layer4.1.conv1", "layer4.1.conv2"]
    method.learn(session(1))
    for name, after in rotated_weights(method).items():
        moved = (after - before[name]).abs()
        assert frozen[name].any()
        assert moved[frozen[name]].max() < 1e-6
        assert moved[~frozen[name]].max() > 1e-3


def test_what_is_frozen_stays_frozen_and_a_session_adds_to_it():
    method = fitted("warp")
    counts = []
    for number in (0, 1, 2):
        if number:
            before = {name: part.frozen for name, part in method.layers.items()}
            method.learn(session(number))
            assert all((before[name] <= part.frozen).all() for name, part in method.layers.items())
        counts.append(sum(int(part.frozen.sum()) for part in method.layers.values()))
    total = sum(part.frozen.numel() for part in method.layers.values())
    assert counts[0] == round(0.1 * total)
    assert counts[0] < counts[1] < counts[2] <= round(0.3 * total)


def test_the_most_important_weights_of_the_base_classes_are_frozen():
    """Importance written out: the gradient of the loss of each 60 images, rotated, its sizes added up."""
    method = fitted("warp")
    method.fit_base(BASE, (2,))
    preprocess = warp.preprocess_of(method.network.recipe)
    sums = {name: torch.zeros(part.frozen.shape) for name, part in method.layers.items()}
    for start in range(0, len(BASE), 60):
        pixels, sizes = BASE.batch(np.arange(start, min(start + 60, len(BASE))))
        images = preprocess(torch.from_numpy(pixels), torch.from_numpy(sizes))
        labels = torch.from_numpy(BASE.labels[start : start + 60])
        method.network.backbone.zero_grad()
        logits = 16 * method.network.head(method.network.backbone(images))
        torch.nn.functional.cross_entropy(logits, labels).backward()
        for name, part in method.layers.items():
            sums[name] += (part.layer.weight.grad.flatten(1) @ part.basis).abs()
    everything = torch.cat([value.flatten() for value in sums.values()])
    found = torch.cat([part.frozen.flatten() for part in method.layers.values()])
    assert everything[found].min() >= everything[~found].max() * 0.999


def test_classes_are_the_means_of_their_features_before_the_session():
    method = fitted("warp")
    new = session(1)
    features = {6: [], 7: []}
    for row, label in zip(method.network.features(new).tolist(), new.labels.tolist(), strict=True):
        features[label].append(row)
    old = method.network.head.weight.detach().clone()
    method.learn(new)
    vectors = method.network.head.weight.detach()
    assert torch.equal(vectors[:6], old)
    for label, rows in features.items():
        expected = [mean(column) for column in zip(*rows, strict=True)]
        np.testing.assert_allclose(vectors[label].numpy(), expected, atol=1e-5)
    expected = [[cosine(row, vector) for vector in vectors.tolist()] for row in method.network.features(BASE).tolist()]
    np.testing.assert_allclose(method.scores(BASE).numpy(), expected, atol=1e-5)


def test_published_shares():
    assert (Warp.weight_decay, Warp.augmented) == (0.0, False)
    assert (warp.KEPT, warp.BASE_BATCH, warp.NEW_BATCH, warp.BASIS_IMAGES) == (0.1, 60, 1, 2560)


def test_nothing_but_the_classifier_grows_where_only_the_head_is_trainable():
    method = fitted("warp", "incremental.trainable=head")
    before = method.state()
    method.learn(session(1))
    after = method.state()
    backbone = [key for key in before if key.startswith("backbone.")]
    assert all(torch.equal(before[key], after[key]) for key in backbone)
    assert len(after["head.weight"]) == 8
