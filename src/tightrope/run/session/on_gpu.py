"""What runs on a GPU and what does not yet: refused in words, before anything runs."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tightrope.core import CaptureError, Graph, TightropeError
from tightrope.native import compiler
from tightrope.native.interface import missing
from tightrope.price.device import device_named, device_of
from tightrope.run.base.arguments import AS_EAGER
from tightrope.run.ledger.accounts import Accounts, accounts
from tightrope.run.session.unit import Settings

_LATER = "It runs on the CPU only, so far."


def accounts_for(
    parameters: Sequence[torch.Tensor], settings: Settings, others: Iterable[Any] = ()
) -> Accounts:
    """Find the accounts of the device that parameters are on, or ``others`` where there are none.

    Raises:
        TightropeError: the settings ask for what does not run there, or there are several devices.
    """
    parameters = [one for one in parameters if not one.is_meta]
    device = device_of(parameters or others)
    places = sorted({str(parameter.device) for parameter in parameters})
    if device.type == "cuda" and len(places) > 1:
        raise TightropeError(
            f"a model with parameters on {' and '.join(places)}: move all of them to one device, then call "
            "tightrope.compile. One GPU is planned for, so far."
        )
    refuse_on_gpu(device, settings)
    return accounts(device)


def refuse_on_gpu(device: torch.device, settings: Settings) -> None:
    """Refuse what the settings ask of a model on a GPU and only runs on the CPU.

    Raises:
        TightropeError: names the argument.

    Example:
        >>> refuse_on_gpu(torch.device("cpu"), Settings(2**30, fuse=True))
    """
    if device.type != "cuda":
        return
    if settings.fuse:
        raise TightropeError(f"fuse=True for a model on {device}: leave it out. {_LATER}")
    if settings.pages is not None:
        raise TightropeError(f"page_to for a model on {device}: leave it out. {_LATER}")
    if settings.verify in AS_EAGER:
        raise TightropeError(
            f'verify="{settings.verify}" for a model on {device}: use verify="graph". {_LATER}'
        )
    if compiler() is None and (why := missing("cuda_allocator")):
        raise TightropeError(
            f"a model on {device} is planned with a hook that a C++ compiler builds, and there is none: {why}"
        )


def refuse_step_on_gpu(device: torch.device) -> None:
    """Refuse a whole step of a model on a GPU.

    Raises:
        TightropeError: says what to use.
    """
    if device.type == "cuda":
        raise TightropeError(
            f"tightrope.step of a model on {device}: use tightrope.compile(model, budget=...) and "
            f"optimizer.step(). {_LATER}"
        )


def refuse_uncaptured_on_gpu(device: torch.device, reason: str) -> None:
    """Refuse a model on a GPU that no plan can be made for: levels 0 and E run on the CPU only.

    Raises:
        CaptureError: with the reason.
    """
    if device.type == "cuda":
        raise CaptureError(
            f"this model on {device} is not planned: {reason} Levels 0 and E, which need no plan, run on "
            "CPUs only. Set torch.cuda.set_per_process_memory_fraction for a limit alone."
        )


def refuse_other_device(graph: Graph, planned: torch.device) -> None:
    """Refuse a graph on another device than the one that its model was compiled for, or on several GPUs.

    Raises:
        TightropeError: says what to do. It is no `CaptureError`, which would run the model without a plan.
    """
    name, called = graph.name or "the model", device_named(graph.environment)
    gpus = [one for one in dict(graph.environment).get("device", "").split(",") if one.startswith("cuda")]
    if len(gpus) > 1:
        raise TightropeError(f"{name} is called with tensors on {' and '.join(gpus)}: use one GPU.")
    if (called.type, called.index or 0) != (planned.type, planned.index or 0):
        raise TightropeError(
            f"{name} was compiled with its parameters on {planned}, and is called with tensors on {called}. "
            "Move it first, then call tightrope.compile."
        )
