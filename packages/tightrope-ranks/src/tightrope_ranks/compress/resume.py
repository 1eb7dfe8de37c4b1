"""What an exchange goes on from in another process: read, and refused where it does not fit.

Idea        A state is a JSON text (step, problem, plan, rank) and the residuals of this rank. All is checked
            before anything is changed.
Guarantee   A state that is accepted is of this rank, of as many ranks, and of the gradients of this
            model; its plan keeps the limits and passes the judge.
Complexity  Linear in gradients; residuals are copied.
Gaps        No resharding: another number of ranks is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from tightrope.core import PlanFileError
from tightrope_ranks.compress.search import check_problem
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import ExchangeLimits, ExchangeState, load_state

_KEYS = {"exchange", "residuals"}


def read_state(state: Mapping[str, Any], rank: int, ranks: int) -> tuple[ExchangeState, dict[str, Tensor]]:
    """Read what `GradientExchange.state_dict` made on this rank.

    Args:
        state: the dictionary.
        rank: this one, in the group of the model.
        ranks: in the group.

    Raises:
        PlanFileError: it is no state, or one of other ranks.
    """
    if not isinstance(state, Mapping) or set(state) != _KEYS:
        keys = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise PlanFileError(f"The state of an exchange has the keys {sorted(_KEYS)}; given was {keys}.")
    text, residuals = state["exchange"], state["residuals"]
    if not isinstance(text, str) or not isinstance(residuals, Mapping):
        raise PlanFileError("The state of an exchange must have a text and a dictionary of tensors.")
    found = load_state(text.encode())
    if found.ranks != ranks or (residuals and found.rank != rank):
        raise PlanFileError(
            f"The state is of rank {found.rank} of {found.ranks}; this is rank {rank} of {ranks}. Save and "
            "load the state on every rank, or begin without one."
        )
    return found, dict(residuals)


def check_fit(
    found: ExchangeState,
    residuals: Mapping[str, Tensor],
    counts: Mapping[str, int],
    codecs: Sequence[str],
    limits: ExchangeLimits,
) -> ExchangeState:
    """Return the state under the limits of this exchange.

    Args:
        found: read.
        residuals: read with it, by the name of their parameter.
        counts: numbers in each gradient of the model, by name.
        codecs: that may be used.
        limits: of this exchange.

    Raises:
        PlanFileError: it is of another model, or its plan needs a codec that may not be used.
        JudgeError: its plan breaks a limit, or claims a wrong figure.
    """
    for name, rest in residuals.items():
        if counts.get(name) != getattr(rest, "numel", int)() or rest.dtype != torch.float32:
            raise PlanFileError(
                f"The state has a residual of {name!r} that fits no gradient of this model. Load the "
                "state of the same model."
            )
    if found.problem is None or found.plan is None:
        return found
    problem = replace(found.problem, limits=limits)
    check_problem(problem)
    stream = problem.stream
    if dict(zip(stream.names, stream.sizes, strict=True)) != {name: 4 * num for name, num in counts.items()}:
        raise PlanFileError(
            f"The state plans {len(stream.names)} gradients that are not the {len(counts)} of this model. "
            "Load the state of the same model."
        )
    refused = next((one.codec for one in found.plan.messages if one.codec not in codecs), None)
    if refused is not None:
        raise PlanFileError(
            f"The plan of the state uses the codec {refused!r}; allowed are {', '.join(codecs)}. Name the "
            "same codecs as before."
        )
    check_exchange(problem, found.plan)
    return replace(found, problem=problem)
