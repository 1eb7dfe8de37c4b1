"""What a torch does for which this version was not tested: tried once per process, on something small.

Where a private name of torch is gone, or an adapter does something else than it did, nothing is captured: a
plan could give other values. Levels E and 0 need less of torch.
"""

import functools
import gc
import tempfile
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import torch

from tightrope.capture import _probes
from tightrope.capture._checks import broken
from tightrope.core import Bytes
from tightrope.run.base.status import StatusLine
from tightrope.run.ledger.accounts import accounts

_ROOM: Final[Bytes] = 16 << 20
"""What the small model may take beside all that is held."""
_trying = False


class TriedWay(NamedTuple):
    """How something small ran.

    Attributes:
        level: that it reached, or why it reached none.
        works: whether it was planned, with the bits of eager.
    """

    level: str
    works: bool


Loss: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Plan: TypeAlias = Callable[[torch.nn.Module, Bytes], tuple[Loss, Callable[[], str]]]
"""Takes a model and a budget; gives what to call with a batch for the loss, and what tells the level."""


def cannot_capture(status: StatusLine, plan: Plan) -> str:
    """Say why nothing is captured on the installed torch, or in this environment, or nothing.

    Names are looked up at every call. On a torch that was not tested, the first call runs every adapter and a
    small model too, and says in one line that they work.

    Args:
        status: where that line goes.
        plan: how the small model is planned.
    """
    if lacking := _probes.said_of(_probes.gone(_probes.CAPTURE)):
        return f"{lacking}."
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return "Torch needs a folder for temporary files: set TMPDIR to one that can be written."
    if _probes.minor() in _probes.TESTED_MINORS or _trying:
        return ""
    first = not _found.cache_info().currsize
    found = _found(plan)
    if first and not found:
        status.say(
            f"torch {torch.__version__} was not tested with this version; adapters work, and a small model "
            "ran planned with the bits of eager"
        )
    return found


def is_untried() -> bool:
    """Tell whether `cannot_capture` has yet to try the installed torch: inside of a trace it cannot."""
    tested = _probes.minor() in _probes.TESTED_MINORS
    return not (tested or _trying or _found.cache_info().currsize)


def cannot_evict() -> str:
    """Say why nothing can be evicted on the installed torch, or nothing."""
    return _probes.said_of(_probes.gone(_probes.EVICTION))


@functools.cache
def _found(plan: Plan) -> str:
    if failing := _probes.said_of(broken()):
        return f"{failing}."
    tried = small_step(plan)
    return (
        "" if tried.works else f"torch {torch.__version__} does not run a small model planned: {tried.level}."
    )


def small_step(plan: Plan) -> TriedWay:
    """Run a small model eagerly and planned, and compare the loss and the gradients bit by bit."""
    global _trying
    with warnings.catch_warnings(), torch.random.fork_rng(devices=()), torch.enable_grad():
        warnings.simplefilter("ignore")
        outer, _trying = _trying, True
        try:
            reached, equal = _compared(plan)
        except Exception as error:  # whatever another torch raises
            line = " ".join(str(error).split())[:200].rstrip(".")
            return TriedWay(f"{type(error).__name__}: {line}", False)
        finally:
            _trying = outer
            gc.collect()  # the small model holds the process to its budget as long as it lives
    if not equal:
        return TriedWay(f"{reached}, with other bits than eager", False)
    return TriedWay(f"{reached}, with the bits of eager", reached == "L1")


def _compared(plan: Plan) -> tuple[str, bool]:
    torch.manual_seed(0)
    eager, planned = _model(), _model()
    planned.load_state_dict(eager.state_dict())
    given, state = torch.randn(4, 8), torch.get_rng_state()
    expected = _gradients(eager, lambda x: loss_of(eager(x)), given)
    loss, level = plan(planned, accounts().held() + accounts().hidden + _ROOM)
    torch.set_rng_state(state)
    found = _gradients(planned, loss, given)
    same = len(expected) == len(found) and all(map(torch.equal, expected, found))
    return level(), same


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 8),
        torch.nn.GELU(),
        torch.nn.Dropout(0.5),
        torch.nn.LayerNorm(8),
        torch.nn.Linear(8, 8),
    )


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """The loss of the small model."""
    return output.square().sum()


def _gradients(model: torch.nn.Module, loss_at: Loss, given: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_at(given)
    if loss.requires_grad:  # a whole step has run its backward
        loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]
