"""The exchange of gradients between ranks: what there is to send, what it costs, and the plan.

Gradients become ready one after another while the backward runs. Neighbours are joined into messages; each
message is encoded by the processor, goes through the one queue of its rank, and is decoded by the processor
once every message has been encoded.

    processor | backward | encode 0 | backward | encode 1 |   | decode 0 | decode 1 |
    queue                           |==== message 0 =====|==== message 1 =====|
"""

import math
from typing import Any, TypeVar

import msgspec

from tightrope.core.errors import PlanFileError
from tightrope.core.units import Bytes

EXCHANGE_SCHEMA = 1
STATE_SCHEMA = 1
_MOST_GRADIENTS = 100_000
_MOST_FILE: Bytes = 64 * 2**20
_Read = TypeVar("_Read")


class GradientStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gradients of one backward, in the order in which they become ready.

    Attributes:
        names: of the gradients, unique.
        sizes: bytes of each.
        compute: seconds of backward between the gradient before and this one; 0 where both come at once.
        before: seconds of the step in front of the backward.
    """

    names: tuple[str, ...]
    sizes: tuple[Bytes, ...]
    compute: tuple[float, ...]
    before: float = 0.0


class CodecCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one codec takes on one machine and link, for a message of x bytes of gradients.

    Attributes:
        name: of the codec.
        encode: seconds, and seconds per byte of x.
        wire: likewise, in the queue.
        decode: likewise.
        sent: bytes that one rank sends, per gradient of the stream.
        error: of the mean that arrives, relative; 0 where it was not measured.
    """

    name: str
    encode: tuple[float, float]
    wire: tuple[float, float]
    decode: tuple[float, float]
    sent: tuple[Bytes, ...]
    error: float = 0.0


class ExchangeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan must keep to.

    Attributes:
        seconds: longest step; None = as fast as possible.
        sent: most bytes that one rank sends in a step; None = any.
        error: largest relative error of a codec that is used; None = any.
    """

    seconds: float | None = None
    sent: Bytes | None = None
    error: float | None = None


class ExchangeProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is planned.

    Attributes:
        stream: the gradients.
        codecs: that a message may have.
        limits: of the plan.
    """

    stream: GradientStream
    codecs: tuple[CodecCost, ...]
    limits: ExchangeLimits = ExchangeLimits()


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Neighbouring gradients that travel together: those from the end of the message before.

    Attributes:
        end: number of the first gradient behind it.
        codec: name.
    """

    end: int
    codec: str


class ExchangePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which gradients travel together, how they are encoded, and what follows.

    Attributes:
        messages: in the order of the queue.
        seconds: of the step, forecast.
        sent: bytes that one rank sends in a step, forecast.
        bound: seconds below which no plan of the problem lies (proved).
        method: what found it.
        schema: version of the layout.
    """

    messages: tuple[Message, ...]
    seconds: float
    sent: Bytes
    bound: float
    method: str
    schema: int = EXCHANGE_SCHEMA

    @property
    def gap(self) -> float:
        """By how much a better plan could be faster, as a part of the bound."""
        return self.seconds / self.bound - 1 if self.bound else 0.0


class ExchangeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank goes on from, in addition to its residuals.

    Attributes:
        rank: in the group of the model.
        ranks: in that group.
        step: backwards so far; random rounding depends on it.
        problem: what was planned; None while steps are watched or plans compared.
        plan: what runs; None likewise.
        schema: version of the layout.
    """

    rank: int
    ranks: int
    step: int
    problem: ExchangeProblem | None = None
    plan: ExchangePlan | None = None
    schema: int = STATE_SCHEMA


def dump_exchange(plan: ExchangePlan) -> bytes:
    """Write a plan as indented JSON that `load_exchange` reads back to an equal plan."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def load_exchange(data: bytes) -> ExchangePlan:
    """Read a plan; whether it is right is for the judge to say.

    Raises:
        PlanFileError: the data is not a plan of this version.

    Example:
        >>> plan = ExchangePlan((Message(1, "none"),), 1.0, 4, 1.0, "single")
        >>> load_exchange(dump_exchange(plan)) == plan
        True
    """
    plan = _read(data, ExchangePlan, "exchange plan", EXCHANGE_SCHEMA)
    _check_plan(plan, "exchange plan")
    return plan


def dump_state(state: ExchangeState) -> bytes:
    """Write a state as JSON that `load_state` reads back to an equal state."""
    return msgspec.json.encode(state)


def load_state(data: bytes) -> ExchangeState:
    """Read a state; whether it fits a model is for `GradientExchange.load_state_dict` to say.

    Raises:
        PlanFileError: the data is not a state of this version.

    Example:
        >>> load_state(dump_state(ExchangeState(0, 2, 7))).step
        7
    """
    state = _read(data, ExchangeState, "exchange state", STATE_SCHEMA)
    if not 0 <= state.rank < state.ranks or state.step < 0 or (state.problem is None) != (state.plan is None):
        raise PlanFileError("exchange state: its ranks, step and plan contradict each other. Save it again.")
    if state.plan is not None:
        _check_plan(state.plan, "exchange state")
    return state


def _read(data: bytes, kind: type[_Read], what: str, version: int) -> _Read:
    if len(data) > _MOST_FILE:
        raise PlanFileError(f"{what}: {len(data)} bytes; at most {_MOST_FILE} are read.")
    try:
        raw: Any = msgspec.json.decode(data)
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if schema != version:
            raise PlanFileError(f"{what}: schema {schema!r}; this version reads {version}. Plan again.")
        return msgspec.convert(raw, kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise PlanFileError(f"{what}: {error}. Plan again.") from error


def _check_plan(plan: ExchangePlan, what: str) -> None:
    ends = [message.end for message in plan.messages]
    if not 0 < len(ends) <= _MOST_GRADIENTS or any(a >= b for a, b in zip([0, *ends], ends, strict=False)):
        raise PlanFileError(f"{what}: $.messages must be neither empty nor out of order. Plan again.")
    if not all(math.isfinite(one) and one >= 0 for one in (plan.seconds, plan.bound)):
        raise PlanFileError(f"{what}: $.seconds and $.bound must be finite and >= 0. Plan again.")
