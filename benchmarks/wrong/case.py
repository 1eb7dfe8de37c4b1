"""Cases: drawn from a seed and a number, run, and judged."""

import gc
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import torch

import tightrope
from benchmarks.wrong import commands, loops
from benchmarks.wrong.doors import DOORS, Door
from benchmarks.wrong.files import World
from benchmarks.wrong.values import FAMILIES, Drawn
from tightrope.core import TightropeError
from tightrope.core.units import shown

_NEXT_STEP: Final = re.compile(
    r"\b(give|write|use|try|make|pass|call|add|raise|remove|needs?|must|there are|there is no|see|detach|"
    r"freeze|install|name|leave|set|expected|holds|judged|has)\b",
    re.IGNORECASE,
)
"""What a message with a next step, or with what would have been right, contains."""
_MOST_NAMED: Final = 6
_BUDGETS: Final = ("64MiB", "64MiB", "64MiB", "90%", "60%", 66_000, 70_000, "100KiB")


class Outcome(msgspec.Struct, frozen=True):
    """What came of a case.

    Attributes:
        number: of the case.
        door: entry point.
        wrong: what was wrong with the call.
        kind: empty = right; else see `benchmarks.wrong`.
        how: ``refused``, ``as torch``, ``taken``.
        said: the error, or what was found.
    """

    number: int
    door: str
    wrong: tuple[str, ...]
    kind: str = ""
    how: str = ""
    said: str = ""


_Told = tuple[str, str, str]
"""Kind, how, said."""


def run_case(world: World, seed: str, number: int) -> Outcome:
    """Draw the case of this number, run it and judge it."""
    rng = Random(f"{seed}/{number}")
    door, wrong, (kind, how, said) = (_argument, _argument, _command, _loop)[number % 4](world, rng, number)
    gc.collect()
    if not kind and (broken := _broken()):
        kind, said = "state", f"{broken}; after: {said}"
    return Outcome(number, door, wrong, kind, how, said[:600])


def _named(given: Mapping[str, Drawn]) -> tuple[str, ...]:
    return tuple(f"{name or 'argument'}: {drawn.name} = {shown(drawn.value)}" for name, drawn in given.items())


# arguments


def _argument(world: World, rng: Random, number: int) -> tuple[str, tuple[str, ...], _Told]:
    pairs = [(name, one) for name, door in DOORS.items() for one in door.arguments]
    name, first = pairs[(number // 4 * 2 + number % 4 + rng.randrange(2) * 37) % len(pairs)]
    door = DOORS[name]
    chosen = [first]
    others = [one for one in door.arguments if one != first]
    if others and rng.random() < 0.4:
        chosen.append(rng.choice(others))
    drawn = {}
    for one in chosen:
        argument = door.arguments[one]
        drawn[one] = FAMILIES[rng.choice(argument.families)](rng, world, argument.takes)
    return name, _named(drawn), _call(world, door, drawn)


def _call(world: World, door: Door, drawn: Mapping[str, Drawn]) -> _Told:
    given = {name: argument.right(world) for name, argument in door.arguments.items()}
    given |= {name: one.value for name, one in drawn.items()}
    try:
        door.call(world, given)
    except BaseException as error:
        del given
        return _judged(error, drawn, lambda: _plain_error(world, door, drawn))
    if any(one.must for one in drawn.values()):
        return "accepted", "taken", ""
    return "", "taken", ""


def _plain_error(world: World, door: Door, drawn: Mapping[str, Drawn]) -> BaseException | None:
    if door.plain is None:
        return None
    given = {name: argument.right(world) for name, argument in door.arguments.items()}
    given |= {name: one.value for name, one in drawn.items()}
    try:
        door.plain(world, given)
    except BaseException as error:
        return error
    return None


def _judged(error: BaseException, drawn: Mapping[str, Drawn], plain: Any) -> _Told:
    said = f"{type(error).__name__}: {error}"
    inner = getattr(error, "inner_exception", None)  # torch.compile wraps whatever a backend raises
    if isinstance(error, TightropeError) or isinstance(inner, TightropeError):
        return ("" if _quotes(str(error), drawn) else "message"), "refused", said
    if isinstance(error, torch.OutOfMemoryError):
        return "memory", "refused", said
    same = plain()
    if same is not None and _alike(same, error):
        return "", "as torch", said
    return "internal", "refused", f"{said} {_where(error)}" + (f" [torch: {same!r:.200}]" if same else "")


def _alike(one: BaseException, other: BaseException) -> bool:
    lines = [(str(error).splitlines() or [""])[0][:60] for error in (one, other)]
    return type(one) is type(other) and lines[0] == lines[1]


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tightrope/" in frame.filename] or frames
    return "".join(f" @{Path(frame.filename).name}:{frame.lineno}" for frame in ours[-3:])


def _quotes(message: str, drawn: Mapping[str, Drawn]) -> bool:
    """Tell whether a message quotes one of the wrong values, or its argument, and says a next step."""
    return bool(_NEXT_STEP.search(message)) and any(
        any(token and token in message for token in _tokens(name, one)) for name, one in drawn.items()
    )


def _tokens(name: str, drawn: Drawn) -> list[str]:
    value = drawn.value
    tokens = [name.strip("-"), shown(value).strip("'\"")[:10], type(value).__name__]
    if isinstance(value, str):
        tokens += [Path(value).name[:12], repr(value)[1:9], value[:8]]
    return tokens + (["$", *drawn.name.split(":")[:1], "bundle", "profile", "CSV"] if drawn.path else [])


# commands


def _command(world: World, rng: Random, number: int) -> tuple[str, tuple[str, ...], _Told]:
    pairs = [(command, name) for command, options in commands.COMMANDS.items() for name in options]
    command, first = pairs[(number // 4 + rng.randrange(2) * 23) % len(pairs)]
    options = commands.COMMANDS[command]
    chosen = [first]
    others = [name for name in options if name != first]
    if others and rng.random() < 0.4:
        chosen.append(rng.choice(others))
    drawn = {
        name: commands.draw_text(rng, world, options[name], positional=not name) for name in chosen
    }  # fmt: skip
    given = commands.arguments(world, command, {name: one.value for name, one in drawn.items()})
    if rng.random() < 0.3:
        given.append("--json")
    return f"$ {command}", _named(drawn), _ran(given, drawn)


def _ran(given: list[str], drawn: Mapping[str, Drawn]) -> _Told:
    try:
        code, text = commands.run_command(given)
    except BaseException as error:
        return "internal", "refused", f"{type(error).__name__}: {error} {_where(error)}"
    if "Traceback (most recent" in text:
        return "internal", "refused", text
    if code == 0:
        return ("accepted" if any(one.must for one in drawn.values()) else ""), "taken", text[:200]
    if code not in (2, 3):
        return "internal", "refused", f"exit {code}: {text}"
    return ("" if _quotes(text, drawn) or code == 3 else "message"), "refused", f"exit {code}: {text}"


# loops


def _loop(world: World, rng: Random, number: int) -> tuple[str, tuple[str, ...], _Told]:
    net, seed = rng.choice(list(loops.NETS)), rng.randrange(2**31)
    verbs, budget = loops.verbs(rng), rng.choice(_BUDGETS)
    told: _Told = ("", "", "")
    named: list[Any] = [budget]
    for _ in range(_MOST_NAMED):
        told, more = _both(net, seed, verbs, named[-1])
        if told[0] or not more:
            break
        named.append(more)
    wrong = (f"{net} under {', '.join(map(str, named))}", ", ".join(verb.__name__ for verb in verbs))
    return "loop", wrong, told


def _both(net: str, seed: int, verbs: tuple[loops.Verb, ...], budget: str | int) -> tuple[_Told, int]:
    """Run a loop planned and plain; also return the budget that a refusal names."""
    plain, planned = loops.session(net, seed, None), loops.session(net, seed, budget)
    states = [torch.get_rng_state()] * 2
    for verb in verbs:
        results: list[list[Any]] = []
        errors: list[BaseException | None] = []
        for which, one in enumerate((plain, planned)):
            torch.set_rng_state(states[which])
            try:
                results.append(_copied(verb(one)))
                errors.append(None)
            except BaseException as error:
                results.append([])
                errors.append(error)
            states[which] = torch.get_rng_state()
        expected, found = errors
        if found is None and expected is None:
            if not _equal(*results):
                return ("differs", "taken", f"after {verb.__name__}"), 0
            continue
        if found is None:
            return ("accepted", "taken", f"{verb.__name__}: torch says {expected!r:.300}"), 0
        said = f"{verb.__name__}: {type(found).__name__}: {found}"
        if isinstance(found, TightropeError):
            named = getattr(found, "smallest_found", 0) or 0
            kind = "" if _NEXT_STEP.search(str(found)) else "message"
            return (kind, "refused" if expected is not None else "refused, torch takes it", said), named
        if isinstance(found, torch.OutOfMemoryError):
            return ("memory", "refused", said), 0
        if expected is not None and _alike(expected, found):
            return ("", "as torch", said), 0
        return ("internal", "refused", f"{said} {_where(found)} [torch: {expected!r:.200}]"), 0
    return ("", "taken", ""), 0


def _copied(values: list[Any]) -> list[Any]:
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values]


def _equal(expected: list[Any], found: list[Any]) -> bool:
    if len(expected) != len(found):
        return False
    for one, other in zip(expected, found, strict=True):
        if (one is None) != (other is None):
            return False
        if one is None or one.is_meta:
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not torch.equal(one.nan_to_num(), other.nan_to_num()):
            return False
    return True


# afterwards


def _broken() -> str:
    """Say what is not as it was; then mend it, so that the next case begins well."""
    said = _settings()
    try:
        said = said or _unsound()
    except BaseException as error:
        said = said or f"the good model fails: {type(error).__name__}: {error} {_where(error)}"
    gc.collect()
    return said


def _settings() -> str:
    accounts = tightrope.run.accounts.accounts()  # type: ignore[attr-defined]
    found = {
        "gradients are off": not torch.is_grad_enabled(),
        "inference mode is on": torch.is_inference_mode_enabled(),
        "the default dtype is another": torch.get_default_dtype() != torch.float32,
        "the number of threads is another": torch.get_num_threads() != 1,
        "autocast is on": torch.is_autocast_enabled("cpu"),
        "algorithms are deterministic": torch.are_deterministic_algorithms_enabled(),
        f"the process is still held to {accounts.budget}": accounts.budget != 0,
        "a replay's limit is still on": accounts._own is not None,
        "the folder is another": os.getcwd() != _FOLDER,
        "standard output is another": sys.stdout is not _OUT,
    }
    return next((name for name, wrong in found.items() if wrong), "")


_FOLDER: Final = os.getcwd()
_OUT: Final = sys.stdout


def _unsound() -> str:
    """Train a small model that is known to be good, beside eager."""
    losses = []
    for budget in (None, "64MiB"):
        torch.manual_seed(0)
        model = loops.NETS["mlp"][0]()
        if budget is not None:
            tightrope.compile(model, budget=budget, progress=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    if losses[:2] != losses[2:]:
        return f"the good model computes {losses[2:]} and not {losses[:2]}"
    level = tightrope.report(model).level
    return "" if level == "L1" else f"the good model runs at level {level}"
