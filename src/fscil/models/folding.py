"""A network for evaluation: BatchNorm with fixed statistics is a linear map, which the convolution before it can do."""

from copy import deepcopy
from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def folded(network: nn.Module) -> nn.Module:
    """A copy in which every BatchNorm that stands behind a convolution is part of it. The original stays as it is.

    Goes by the order of a module's children, which in this package's networks is the order they are called in. That of
    timm's networks is not known: they are left alone.
    """
    copy = deepcopy(network).eval()
    if any(name == "network" for name, _ in copy.named_children()):
        return copy
    for parent in list(copy.modules()):
        for (first, convolution), (second, norm) in pairwise(list(parent.named_children())):
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, first, fuse_conv_bn_eval(convolution, norm))
                setattr(parent, second, nn.Identity())
    return copy
