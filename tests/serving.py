"""A real service on a tiny model, in a thread or in a process of its own, for tests over HTTP."""

import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import torch
from PIL import Image

from fscil.classifier import Classifier, StoredClassifier
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.data.images import Resize
from fscil.preprocess import Preprocess
from fscil.serve.keys import Keys
from fscil.serve.limits import Limits
from fscil.serve.review import open_review
from fscil.serve.server import listen, make_server
from fscil.serve.service import Service
from fscil.serve.tokens import Token
from helpers import picture

READ, ENROLL = "read-0123456789abcdef", "enroll-0123456789abcdef"

PROGRAM = """
import json, sys
from pathlib import Path
from fscil.errors import FscilError
from fscil.serve import run
from fscil.serve.limits import Limits
options = json.loads(sys.argv[2])
for name, limit in options.pop("resources", {}).items():
    import resource
    resource.setrlimit(getattr(resource, name), (limit, limit))
limits = Limits(**options.pop("limits", {}))
key_file = options.pop("key_file", None)
try:
    run(sys.argv[1], key_file=Path(key_file) if key_file else None, limits=limits, port=0, **options)
except FscilError as error:
    sys.exit(str(error))
"""


def respect_permissions():
    """Root may read and write everywhere; without these capabilities, only where the permissions of a file allow it.

    Called in a child process before its program starts.
    """
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2  # of Linux
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def tiny_classifier():
    """A small random network: untrained, but different pictures have different features."""
    torch.manual_seed(0)
    config = EncoderConfig("resnet20", {"width": 4}, Resize(32), Preprocess(crop=32))
    return Classifier(PhotoEncoder(config, config.build(), torch.device("cpu")))


def estimated_classifier():
    """The same with six classes of six photos each, under the two-covariance rule."""
    classifier = tiny_classifier()
    for label in range(6):
        classifier.gallery.enroll(f"class {label}", classifier.photos([photo(label, seed) for seed in range(6)]))
    classifier.estimate()
    return classifier


def photo(label, seed, size=64):
    """The bytes of a PNG: equal labels look alike."""
    file = io.BytesIO()
    Image.fromarray(picture(label, seed)).resize((size, size), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def form(*photos):
    return [("files", (f"photo{number}.png", content, "image/png")) for number, content in enumerate(photos)]


class Server:
    """`run` in a process of its own, by default without a token, and an HTTP client of it."""

    def __init__(self, model, unprivileged=False, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(model), json.dumps({"token": False, **options})],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=respect_permissions if unprivileged else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        first = self.process.stdout.readline()
        if not first:
            raise AssertionError(f"the service did not start: {self.process.communicate()[1]}")
        self.printed = first
        address = next(word for word in first.split() if word.startswith("http://"))
        self.url, _, self.token = address.partition("/?token=")
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def end(self, number=signal.SIGTERM):
        """Send a signal and wait; returns the exit code and standard error."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def process(model, **options):
    """A service that exits with status 0, or was killed by the test."""
    server = Server(model, **options)
    try:
        yield server
    finally:
        code, errors = server.end()
    assert "Traceback" not in errors
    assert code in (0, -signal.SIGKILL), errors


@contextmanager
def served(model, keys=None, token=False, keep_unknown=None, **limits):
    """The service in a thread of this process, which is quicker to start; yields its client."""
    with StoredClassifier.open(model, serving=True) as stored, listen("127.0.0.1", 0) as listener:
        service = Service(stored, Limits(**limits), review=open_review(stored, model, keep_unknown))
        secret = Token(listener.getsockname()[1]) if token else None
        server = make_server(service, Keys.load(keys) if keys else None, secret)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
                client.token = secret.value if secret else None
                yield client
        finally:
            server.should_exit = True
            thread.join()
            service.close()


def write_keys(folder):
    path = folder / "keys.txt"
    path.write_text(f"# a comment\nread {READ}\n\nenroll {ENROLL}\n")
    return path
