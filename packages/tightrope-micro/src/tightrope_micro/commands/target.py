"""What ``tightrope micro compile`` works on: what a function returns for a step, and for a forward."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tightrope.cli.target import called, checked
from tightrope.core import TightropeError

if TYPE_CHECKING:
    import torch


class TrainedModel(NamedTuple):
    """A model, the arguments of one call, and what updates it."""

    model: "torch.nn.Module"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    optimizer: "torch.optim.Optimizer"


class CalibratedNet(NamedTuple):
    """A model, the tensors of one call, and those of several calls, from which ranges come."""

    model: "torch.nn.Module"
    args: "tuple[torch.Tensor, ...]"
    samples: "tuple[tuple[torch.Tensor, ...], ...]"


def build_trained(target: str) -> TrainedModel:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs, optimizer).

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    made = called(target)
    import torch

    match made:
        case (model, inputs, torch.optim.Optimizer() as optimizer):
            return TrainedModel(*checked(target, (model, inputs)), optimizer)
    raise TightropeError(
        f"{target!r} must return (model, inputs, optimizer), the last a torch.optim.SGD or AdamW: the update "
        "is a part of the step."
    )


def build_calibrated(target: str) -> CalibratedNet:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs) or (model, inputs, samples).

    Samples are a list of inputs like those of the call. A file in ONNX has a net and no samples.

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    if target.endswith(".onnx"):
        from tightrope_micro.onnx_net import load_onnx

        return CalibratedNet(*load_onnx(target), ())
    made = called(target)
    import torch

    samples: object = ()
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[2], list | tuple):
        *made, samples = made
    built = checked(target, tuple(made) if isinstance(made, list) else made)
    calls = tuple(
        tuple(one) if isinstance(one, list | tuple) else (one,)
        for one in (samples if isinstance(samples, list | tuple) else ())
    )
    for values in (built.args, *calls):
        alike = len(values) == len(built.args) and all(isinstance(value, torch.Tensor) for value in values)
        if (
            built.kwargs
            or not alike
            or any(v.shape != a.shape for v, a in zip(values, built.args, strict=True))
        ):
            raise TightropeError(
                f"{target!r} must return (model, inputs, samples). Inputs are tensors by position; samples "
                "are a list of such inputs, of the same shapes, to calibrate ranges."
            )
    return CalibratedNet(built.model, built.args, calls)
