"""Judge a run of a written file by what was promised; shares no code with the forecast.

A promise says how often each op runs again, and how many tensors autograd saves around the modules. A run
says how often it did, and what hooks saw. What was computed again is what was not kept, so equal counts
mean that the file saves what it should.
"""

from typing import Final

from tightrope_export.values.form import FormPromise, Shown

CLOSE: Final = 0.02
"""How far an observed peak may be from its forecast."""


def findings(promise: FormPromise, shown: Shown) -> list[str]:
    """List what is wrong with a run; empty = it is as promised.

    >>> promise = FormPromise(1000, 0, 12, 10, (("aten.mm.default", 2),))
    >>> findings(promise, Shown(1000, (("aten.mm.default", 1),), 0, ()))
    ['aten.mm.default runs 1 times more than without the file, and not 2.']
    """
    found = [f"{name} has other bits than without the file." for name in shown.differs]
    promised, ran = dict(promise.again), dict(shown.again)
    for name in sorted({*promised, *ran}):
        if promised.get(name, 0) != ran.get(name, 0):
            more = f"{name} runs {ran.get(name, 0)} times more than without the file"
            found.append(f"{more}, and not {promised.get(name, 0)}.")
    if promise.saved != shown.saved:
        found.append(f"autograd saves {shown.saved} tensors around the modules, and not {promise.saved}.")
    if shown.peak < 1 or abs(promise.peak - shown.peak) > CLOSE * shown.peak:
        found.append(f"the peak is {shown.peak} bytes above what the caller holds, and not {promise.peak}.")
    return found
