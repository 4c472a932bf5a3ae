"""A fingerprint of all that an answer depends on, so that answers of another model are not taken for this one's."""

import hashlib
import json

import torch

from fscil import __version__
from fscil.classifier.predictor import Predictor


def fingerprint(model: Predictor) -> str:
    """64 hexadecimal digits of network, classes, negative examples and decision; and of the version of fscil."""
    with model.lock:
        gallery = model.gallery
        plain = {
            "version": __version__,
            "network": model.encoder.config.to_dict(),
            "decision": model.decision.to_about(gallery.rule),
            "names": gallery.names,
            "negatives": [[photo.digest for photo in gallery.negatives(name)] for name in gallery.names],
        }
        found = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
        parts = (model.encoder.backbone.state_dict(), gallery.rule.state(), {"prototypes": gallery.prototypes})
        for part in parts:
            for name, tensor in sorted(part.items()):
                found.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
                found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        found.update(gallery.counts.numpy().tobytes())
    return found.hexdigest()
