"""What an exchange goes on from in another process: read, and refused where it does not fit.

Idea        A state is a JSON text (step, problem, plan, rank) and the residuals of this rank. All is checked
            before anything is changed.
Guarantee   A state that is accepted is of this rank, of as many ranks, and of the gradients of this
            model; its plan keeps the limits and passes the judge, and has the finite residuals that it needs.
Complexity  Linear in gradients; residuals are copied.
Gaps        No resharding: another number of ranks is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from tightrope.core import PlanFileError
from tightrope_ranks.compress.codecs import CODECS
from tightrope_ranks.compress.search import check_problem
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import (
    ExchangeLimits,
    ExchangePlan,
    ExchangeProblem,
    ExchangeState,
    load_state,
)

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
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise PlanFileError(
            f"The text of the state has {text[error.start]!r}, which is no character. Save it again."
        ) from error
    found = load_state(data)
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
    *,
    feedback: bool,
) -> ExchangeState:
    """Return the state under the limits of this exchange.

    Args:
        found: read.
        residuals: read with it, by the name of their parameter.
        counts: numbers in each gradient of the model, by name.
        codecs: that may be used.
        limits: of this exchange.
        feedback: whether this exchange adds residuals to gradients.

    Raises:
        PlanFileError: it is of another model, its plan needs a codec that may not be used, or its residuals
            are not those that the plan needs.
        JudgeError: its plan breaks a limit, or claims a wrong figure.
    """
    for name, rest in residuals.items():
        if not _is_plain(rest) or rest.shape != (counts.get(name),):
            raise PlanFileError(
                f"The state has a residual of {name!r} that fits no gradient of this model. Load the "
                "state of the same model."
            )
        if not bool(rest.isfinite().all()):
            raise PlanFileError(
                f"The state has a residual of {name!r} that is not finite. Load an older checkpoint."
            )
    if residuals and not feedback:
        raise PlanFileError("The state has residuals, which feedback=False ignores. Use feedback=True.")
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
    missing = next((name for name in rested(problem, found.plan) if name not in residuals), None)
    if feedback and missing is not None:
        raise PlanFileError(
            f"The state has no residual of {missing!r}, which its plan goes on from. Load the whole state, "
            "saved with feedback=True."
        )
    return replace(found, problem=problem)


def rested(problem: ExchangeProblem, plan: ExchangePlan) -> list[str]:
    """Return the gradients of which codecs of a plan leave residuals.

    Args:
        problem: what was planned.
        plan: of it, which the judge has passed.
    """
    starts = (0, *(one.end for one in plan.messages))
    return [
        name
        for start, one in zip(starts, plan.messages, strict=False)
        if CODECS[one.codec].feedback
        for name in problem.stream.names[start : one.end]
    ]


def _is_plain(rest: object) -> bool:
    if type(rest) is not Tensor or rest.layout != torch.strided:
        return False
    return rest.device.type == "cpu" and rest.dtype == torch.float32
