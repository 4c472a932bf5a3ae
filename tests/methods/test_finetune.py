"""Fine-tuning is cross-entropy over all classes on the images of the session, and on nothing else."""

import numpy as np
import pytest
import torch
from naive import cross_entropy, fitted, record_trainings, session, some_views


def test_a_session_is_cross_entropy_on_its_own_images():
    method = fitted("finetune", "incremental.steps=4")
    trainings = record_trainings(method)
    for number in (1, 2):
        new = session(number)
        method.learn(new)
        training = trainings[-1]
        places = np.arange(len(new))
        np.testing.assert_array_equal(training.images.labels, new.labels)
        np.testing.assert_array_equal(training.images.batch(places)[0], new.batch(places)[0])
        views, labels = some_views([0, 5, *new.counts])
        _, scores = training.after(views)
        assert len(scores[0]) == 6 + 2 * number
        assert training.loss(views, labels).item() == pytest.approx(cross_entropy(scores, labels.tolist()), abs=1e-4)


def test_everything_moves():
    method = fitted("finetune", "incremental.lr=0.1")
    before = method.state()
    method.learn(session(1))
    after = method.state()
    assert not torch.equal(after["backbone.conv1.weight"], before["backbone.conv1.weight"])
    assert not torch.equal(after["head.weight"][:6], before["head.weight"])
