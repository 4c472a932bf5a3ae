"""A network for evaluation: BatchNorm with fixed statistics is linear, and is folded into the convolution before it."""

from copy import deepcopy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fscil.models.backbone import Backbone
from fscil.models.efficientnet_lite import InvertedResidual
from fscil.models.resnet import BasicBlock


def folded(network: nn.Module) -> nn.Module:
    """A copy in which every BatchNorm after a convolution is folded into it. The original is not changed.

    Only children of modules that call them in the order of their definition are folded; timm's networks are not.
    """
    with torch.inference_mode(False):  # whoever asks first: weights of inference mode could not be changed outside it
        return _folded(deepcopy(network).eval())


def _folded(copy: nn.Module) -> nn.Module:
    if any(hasattr(module, "network") for module in copy.modules() if isinstance(module, Backbone)):
        return copy
    for parent in [module for module in copy.modules() if _calls_in_order(module)]:
        for (first, convolution), (second, norm) in pairwise(list(parent.named_children())):
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, first, fuse_conv_bn_eval(convolution, norm))
                setattr(parent, second, nn.Identity())
    return copy


def _calls_in_order(module: nn.Module) -> bool:
    """Known of this package's blocks and of plain sequences; a backbone of another package may call as it likes."""
    return type(module).forward is nn.Sequential.forward or isinstance(module, BasicBlock | InvertedResidual)
