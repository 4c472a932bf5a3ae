import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity
from torch.nn import functional as F

from fscil.models import CosineHead, Projection, build_backbone, parameter_count


@settings(max_examples=25, deadline=None)
@given(
    images=st.integers(1, 6),
    features=st.integers(1, 9),
    classes=st.integers(1, 7),
    scale=st.floats(0.01, 100),
    seed=st.integers(0, 99),
)
def test_cosine_head_gives_cosines_whatever_the_length(images, features, classes, scale, seed):
    torch.manual_seed(seed)
    head = CosineHead(features, classes)
    x = torch.randn(images, features)
    found = head(x).detach()
    assert found.shape == (images, classes)
    np.testing.assert_allclose(found, cosine_similarity(x.numpy(), head.weight.detach().numpy()), atol=1e-5)
    torch.testing.assert_close(head(scale * x).detach(), found, atol=1e-5, rtol=1e-5)


def test_cosine_head_has_a_weight_and_nothing_else():
    assert {name: tuple(tensor.shape) for name, tensor in CosineHead(512, 1830).state_dict().items()} == {
        "weight": (1830, 512)
    }


def standardise(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def test_projection_by_hand():
    torch.manual_seed(0)
    projection = Projection(6, hidden=10, out=4).double()
    norm = projection[1]
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-1, 1)
    first, second = projection[0].weight.detach().numpy(), projection[3].weight.detach().numpy()
    x = torch.randn(8, 6, dtype=torch.double)

    hidden = np.maximum(standardise(x.numpy() @ first.T) * norm.weight.detach().numpy() + norm.bias.detach().numpy(), 0)
    np.testing.assert_allclose(projection(x).detach(), standardise(hidden @ second.T))


def test_projection_has_the_sizes_of_the_recipe():
    # Two bias-free linear layers and one affine BatchNorm; the last BatchNorm learns nothing.
    assert parameter_count(Projection(512)) == 512 * 2048 + 2 * 2048 + 2048 * 2048
    assert Projection(512)(torch.randn(2, 512)).shape == (2, 2048)


def test_loss_reaches_every_parameter_of_backbone_and_heads():
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", width=8)
    network = torch.nn.Sequential(backbone, Projection(backbone.feature_dim, 32, 16), CosineHead(16, 5))
    F.cross_entropy(30 * network(torch.randn(8, 3, 32, 32)), torch.arange(8) % 5).backward()
    untouched = [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()]
    assert untouched == []
