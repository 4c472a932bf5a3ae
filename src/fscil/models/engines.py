"""What evaluates a frozen network on a CPU: torch, or onnxruntime, which is about twice as fast there.

Features of the two engines agree within TOLERANCE, which is checked when an engine starts, so that classes enrolled
with one are valid with the other.
"""

import os
import warnings
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from fscil.errors import ConfigError
from fscil.runtime.extras import install_command
from fscil.runtime.text import did_you_mean

Engine: TypeAlias = Literal["auto", "torch", "onnxruntime"]

VARIABLE = "FSCIL_ENGINE"  # of the environment: the engine where the program does not choose
PACKAGES = ("onnxruntime", "onnx")
TOLERANCE = 1e-4  # by which features of the engines may differ, as a share of the largest; about 1e-6 was measured
OPSET = 17


def chosen_engine(engine: Engine | None, device: torch.device) -> Engine:
    """The engine that is asked for here or by FSCIL_ENGINE, once checked; "auto" only where both are possible."""
    asked, known = engine or os.environ.get(VARIABLE) or "auto", get_args(Engine)
    found: Engine | None = next((name for name in known if name == asked), None)
    if found is None:
        raise ConfigError(f'no engine "{asked}".{did_you_mean(asked, known)} Known: {", ".join(known)}.')
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if found == "auto":
        return "torch" if missing or device.type != "cpu" else "auto"
    if found == "onnxruntime" and device.type != "cpu":
        raise ConfigError(f"the engine onnxruntime runs on the CPU, not on {device}. Use auto or torch.")
    if found == "onnxruntime" and missing:
        raise ConfigError(
            f"the engine onnxruntime needs {' and '.join(missing)}. Run: {install_command('onnxruntime')}"
        )
    return found


class OnnxNetwork:
    """A frozen network in onnxruntime: (n, 3, size, size) float32 -> (n, feature_dim) float32, on the CPU.

    The same image gives the same bits in any batch. Memory that a batch took is kept for the next one.
    """

    def __init__(self, network: nn.Module, size: int) -> None:
        """network: on the CPU, with BatchNorm folded. Raises ConfigError where it cannot be converted exactly."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()  # so that OMP_NUM_THREADS is for both engines
        options.log_severity_level = 3  # errors
        # Threads that wait for work would take the time of those that decode the next photos.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        with torch.inference_mode():
            samples = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
            try:
                content = converted(network, samples)
                self._session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
                found = self(samples)
            except Exception as error:  # of almost any type: torch's exporter and onnxruntime have their own
                raise ConfigError(
                    f"this network cannot be run by onnxruntime ({error}). Use the engine torch."
                ) from error
            expected = network(samples.contiguous(memory_format=torch.channels_last)).float()
        difference = (found - expected).abs().max()
        if not difference <= TOLERANCE * expected.abs().max():  # also if it is NaN
            raise ConfigError(
                f"onnxruntime computes other features of this network (by {difference:.1e}). Use the engine torch."
            )

    def __call__(self, images: Tensor) -> Tensor:
        (features,) = self._session.run(None, {"images": images.contiguous().numpy()})
        return torch.from_numpy(features)


def converted(network: nn.Module, samples: Tensor) -> bytes:
    """The network as ONNX, for any number of images of this size."""
    file: Any = BytesIO()  # which this exporter takes, whatever its type says
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing takes sizes for constants, and which exporter is newer
        torch.onnx.export(
            network,
            (samples,),
            file,
            input_names=["images"],
            output_names=["features"],
            dynamic_axes={"images": {0: "batch"}, "features": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,  # in a fifth of a second, and without another package
        )
    content: bytes = file.getvalue()
    return content
