"""The exchange of gradients between ranks: what there is to send, what it costs, and the plan.

Gradients become ready one after another while the backward runs. Neighbours are joined into messages; each
message is encoded by the processor, goes through the one queue of its rank, and is decoded by the processor
once every message has been encoded.

    processor | backward | encode 0 | backward | encode 1 |   | decode 0 | decode 1 |
    queue                           |==== message 0 =====|==== message 1 =====|
"""

import math
from typing import Any

import msgspec

from tightrope.core.errors import PlanFileError
from tightrope.core.units import Bytes

EXCHANGE_SCHEMA = 1
_MOST_GRADIENTS = 100_000
_MOST_FILE: Bytes = 64 * 2**20


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
    """

    name: str
    encode: tuple[float, float]
    wire: tuple[float, float]
    decode: tuple[float, float]
    sent: tuple[Bytes, ...]


class ExchangeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan must keep to.

    Attributes:
        seconds: longest step; None = as fast as possible.
        sent: most bytes that one rank sends in a step; None = any.
    """

    seconds: float | None = None
    sent: Bytes | None = None


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
    if len(data) > _MOST_FILE:
        raise PlanFileError(f"exchange plan: {len(data)} bytes; at most {_MOST_FILE} are read.")
    try:
        raw: Any = msgspec.json.decode(data)
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if schema != EXCHANGE_SCHEMA:
            raise PlanFileError(
                f"exchange plan: schema {schema!r}; this version reads {EXCHANGE_SCHEMA}. Plan again."
            )
        plan = msgspec.convert(raw, ExchangePlan)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise PlanFileError(f"exchange plan: {error}. Plan again.") from error
    ends = [message.end for message in plan.messages]
    if not 0 < len(ends) <= _MOST_GRADIENTS or any(a >= b for a, b in zip([0, *ends], ends, strict=False)):
        raise PlanFileError("exchange plan: $.messages must be neither empty nor out of order. Plan again.")
    if not all(math.isfinite(one) and one >= 0 for one in (plan.seconds, plan.bound)):
        raise PlanFileError("exchange plan: $.seconds and $.bound must be finite and >= 0. Plan again.")
    return plan
