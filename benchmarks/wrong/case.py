"""Cases: drawn from a seed and a number, run, and judged."""

import gc
import os
import re
import sys
import traceback
from collections.abc import Mapping
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

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
    r"\b(give|write|use|try|make|pass|call|add|ask|raise|remove|needs?|must|there are|see|detach|clone|"
    r"change|freeze|install|leave|name|record|save|set|unzip|update|reads|expected)\b",
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
    return tuple(
        f"{name or 'argument'}: {drawn.name} = {shown(drawn.value)}" for name, drawn in given.items()
    )


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
    skipped = door is DOORS["torch.compile"] and "model" in drawn  # torch may not ask its backend about one
    if any(one.must for one in drawn.values()) and not skipped:
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
    return "".join(f" @{Path(frame.filename).name}:{frame.lineno}" for frame in ours[-8:])


def _quotes(message: str, drawn: Mapping[str, Drawn]) -> bool:
    """Tell whether a message quotes one of the wrong values, or its argument, and says a next step."""
    return bool(_NEXT_STEP.search(message)) and any(
        any(token and token in message for token in _tokens(name, one)) for name, one in drawn.items()
    )


def _tokens(name: str, drawn: Drawn) -> list[str]:
    value = drawn.value
    tokens = [
        name.strip("-"),
        "asked",
        "arguments",
        "input",
        shown(value).strip("'\"")[:10],
        type(value).__name__,
    ]
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


class _Raised(NamedTuple):
    """An error without its frames, which would keep the loop alive."""

    kind: type[BaseException]
    text: str
    where: str
    named: int


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
    """Run a loop plain, then planned; also return the budget that a refusal names."""
    gc.collect()
    plain = _results(net, seed, verbs, None)
    gc.collect()
    planned = _results(net, seed, verbs, budget)
    for verb, expected, found in zip_longest(verbs, plain, planned):
        if isinstance(found, _Raised):
            return _judged_beside(verb.__name__, expected, found)
        if isinstance(expected, _Raised):
            return ("accepted", "taken", f"{verb.__name__}: torch says {expected.text:.300}"), 0
        if expected != found:
            return ("differs", "taken", f"after {verb.__name__}"), 0
    return ("", "taken", ""), 0


def _judged_beside(verb: str, expected: Any, found: _Raised) -> tuple[_Told, int]:
    said = f"{verb}: {found.text}"
    if issubclass(found.kind, TightropeError):
        kind = "" if _NEXT_STEP.search(found.text) else "message"
        how = "refused" if isinstance(expected, _Raised) else "refused, torch takes it"
        return (kind, how, said), found.named
    if issubclass(found.kind, torch.OutOfMemoryError):
        return ("memory", "refused", said), 0
    if isinstance(expected, _Raised) and expected.kind is found.kind and _first(expected) == _first(found):
        return ("", "as torch", said), 0
    beside = expected.text if isinstance(expected, _Raised) else "takes it"
    return ("internal", "refused", f"{found.where} [torch: {beside:.100}] {said}"), 0


def _first(raised: _Raised) -> str:
    return (raised.text.splitlines() or [""])[0][:80]


def _results(
    net: str, seed: int, verbs: tuple[loops.Verb, ...], budget: str | int | None
) -> list[tuple[str, ...] | _Raised]:
    """Run a loop up to its first error; return the digests of what every verb gave."""
    accounts = tightrope.run.ledger.accounts.accounts()  # type: ignore[attr-defined]
    session = loops.session(net, seed, budget)
    found: list[tuple[str, ...] | _Raised] = []
    for position, verb in enumerate(verbs):
        torch.manual_seed(seed + position)
        try:
            values = verb(session)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            named = getattr(error, "budget_to_try", 0) or getattr(error, "smallest_found", 0) or 0
            return [*found, _Raised(type(error), text, _where(error), named)]
        with accounts.unlimited():
            found.append(tuple(_digest(value) for value in values))
    return found


def _digest(value: Any) -> str:
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return str(type(value))
    plain = value.detach().to_dense() if value.is_sparse else value.detach()
    data = plain.nan_to_num().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {blake2b(data, digest_size=16).hexdigest()}"


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
    accounts = tightrope.run.ledger.accounts.accounts()  # type: ignore[attr-defined]
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
