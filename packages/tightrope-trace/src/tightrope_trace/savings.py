"""What taking fewer bytes costs: an interval that holds the price of the fastest plan.

Idea        A plan that takes no more than the bytes wanted shows what is enough; a bound on the time of
            every plan within those bytes, or more of them, shows what is needed. Both come with the plans
            of a trace: the one shown, and those for other budgets.
Guarantee   ``least_ns`` <= the least price of all plans that recompute in base order <= ``most_ns``: fewer
            bytes never make a step faster, so a bound holds for every smaller budget, and a plan for every
            larger one. Bounds are those of certificates, and plans were judged; equal ends are exact.
Complexity  Linear in the plans of the trace.
Gaps        Between two budgets of a curve the interval is as wide as the step between them. A plan that
            pages may cost less. A buffer has no price of its own: what making it again reads may be gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, Nanoseconds, Trace, format_bytes, format_time
from tightrope.core.units import format_price


@dataclass(frozen=True, slots=True)
class Price:
    """Time that a plan within fewer bytes adds to the step shown: an interval.

    Attributes:
        least_ns: proved: no plan adds less; None where no plan exists at all.
        most_ns: added by a plan that was found; None where none is known.
        budget: of that plan; 0 without one.
    """

    least_ns: Nanoseconds | None
    most_ns: Nanoseconds | None = None
    budget: Bytes = 0

    @property
    def exact(self) -> bool:
        """Whether no plan is cheaper than the one that was found."""
        return self.least_ns is not None and self.least_ns == self.most_ns


@dataclass(frozen=True, slots=True)
class Saving:
    """What taking fewer bytes would cost, and what could go at the peak.

    Attributes:
        asked: bytes to save.
        bytes: bytes that the chosen buffers take at the peak; less than ``asked`` where no more can go.
        ns: of running the ops of these buffers once more, without what they read: no price of anything.
        buffers: positions in the trace, cheapest byte first.
        known: whether the trace has the prices of a plan.
        price: of a plan that takes so many bytes less; None without a plan's prices.
    """

    asked: Bytes
    bytes: Bytes
    ns: Nanoseconds
    buffers: tuple[int, ...]
    known: bool = True
    price: Price | None = None

    def __str__(self) -> str:
        asked = f"to save {format_bytes(self.asked)}: "
        if not self.known or self.price is None:
            return f"{asked}not known without a plan's prices"
        text = asked + _priced(self.price)
        if not self.buffers:
            return f"{text}; nothing alive at the peak can be recomputed"
        enough = "" if self.bytes >= self.asked else ", and no more can go"
        return (
            f"{text}; cheapest at the peak by themselves: {len(self.buffers)} buffers "
            f"({format_bytes(self.bytes)}{enough}), whose ops take {format_price(self.ns)}, "
            "without what these read"
        )


def _priced(price: Price) -> str:
    if price.least_ns is None:
        return "not possible, no plan takes so little (proved)"
    if price.most_ns is None:
        least = f"at least {format_time(price.least_ns)} (proved)" if price.least_ns else "an unknown time"
        return f"{least}: no plan that small is known here"
    found = f"the plan for {format_bytes(price.budget)}"
    if price.exact:
        more = f"{format_time(price.most_ns)} more" if price.most_ns else "no more time"
        return f"{more}, exactly: {found}, and no plan costs less (proved)"
    least = f"at least {format_time(price.least_ns)} (proved)" if price.least_ns else "nothing at best"
    return f"{least}, at most {format_time(price.most_ns)} more: {found}"


def price_of(trace: Trace, save: Bytes) -> Price | None:
    """Bound the price of taking fewer bytes than the plan of a trace does.

    Args:
        trace: forecast, or observed from a plan; its times are those of the plan.
        save: bytes to take less, in all.

    Returns:
        The interval; None where the trace has no plan, or its ops no times.

    Example:
        >>> from tightrope.core import BudgetPoint, Summary
        >>> points = (BudgetPoint(80, 80, 130, ns_bound=110), BudgetPoint(100, 100, 100, ns_bound=100))
        >>> plan = Summary(budget=100, arena=100, ns=100, base_ns=100, curve=points)
        >>> price_of(Trace("forecast", (), summary=plan), 20)
        Price(least_ns=10, most_ns=30, budget=80)
    """
    shown = trace.summary
    if not shown.budget or not shown.ns:
        return None
    wanted = shown.persistent + shown.arena + shown.outside - save
    if wanted < shown.lower_bound:
        return Price(None)
    bounds: list[Nanoseconds] = [0]
    if not shown.stretches:
        bounds += [shown.base_ns, (shown.ns if shown.proved else shown.ns_bound) * (shown.budget >= wanted)]
        bounds += [one.ns if one.proved else one.ns_bound for one in shown.curve if one.budget >= wanted]
    found = min((one for one in shown.curve if one.total <= wanted), key=lambda one: one.ns, default=None)
    least = max(0, max(bounds) - shown.ns)
    if found is None:
        return Price(least)
    return Price(least, max(0, found.ns - shown.ns), found.budget)


def saving(trace: Trace, there: Sequence[int], save: Bytes) -> Saving:
    """Price fewer bytes, and take buffers that could go at the peak, cheapest byte first.

    Args:
        trace: see `price_of`.
        there: buffers alive at the peak.
        save: bytes to save; 0 = do not ask.
    """
    chosen: list[int] = []
    freed, ops = 0, dict[int, Nanoseconds]()
    for k, ns in _able(trace, there) if save else ():
        if freed >= save:
            break
        chosen.append(k)
        freed += trace.buffers[k].size
        ops[trace.buffers[k].creator] = ns  # one run makes all that an op makes
    price = price_of(trace, save) if save else None
    return Saving(save, freed, sum(ops.values()), tuple(chosen), known=bool(trace.reasons), price=price)


def _able(trace: Trace, there: Sequence[int]) -> list[tuple[int, Nanoseconds]]:
    """Buffers that can be recomputed and that nothing needs at the peak, with the time of their ops."""
    tick = trace.peak_tick
    busy = {
        k for k, event in enumerate(trace.events)
        if trace.ticks and 0 <= tick < len(trace.ticks) and event.start <= trace.ticks[tick] <= event.end
    }  # fmt: skip
    found = []
    for k in there:
        buffer = trace.buffers[k]
        if buffer.reason < 0 or buffer.creator in busy or busy.intersection(buffer.readers):
            continue
        reason = trace.reasons[buffer.reason]
        later = (
            any(trace.events[r].start > trace.ticks[tick] for r in buffer.readers) if trace.ticks else True
        )
        if "recomputing" in reason.text and later:
            found.append((reason.ns / max(buffer.size, 1), k, reason.ns))
    return [(k, ns) for _, k, ns in sorted(found)]
