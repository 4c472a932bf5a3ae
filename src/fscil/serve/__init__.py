"""HTTP service and web page for a model folder: `run` serves it until SIGTERM or Ctrl-C."""

from fscil.serve.server import run

__all__ = ["run"]
