"""The entry points of the package, each with its arguments as they are right."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

import tightrope
from benchmarks.wrong.files import World

Call = Callable[[World, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Argument:
    """One argument.

    Attributes:
        right: makes a right value.
        families: to draw wrong ones from.
        takes: names of junk that is right here.
    """

    right: Callable[[World], Any]
    families: tuple[str, ...]
    takes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Door:
    """One entry point.

    Attributes:
        arguments: by name.
        call: calls it, and uses what it returns.
        plain: the same without the package, where torch may refuse it.
    """

    arguments: Mapping[str, Argument]
    call: Call
    plain: Call | None = None


def _always(value: Any) -> Callable[[World], Any]:
    return lambda world: value


_NO_KEYS = ("dict", "list", "empty list", "deep list")
_SEED = Argument(_always(0), ("junk",), ("zero", "True"))
_SECONDS = Argument(_always(0.5), ("junk",), ("None", "fraction", "True"))
_PROGRESS = Argument(_always(False), ("junk",), ("None", "True"))
_VERIFY = Argument(_always("first"), ("junk",), ("None",))
_BUDGET = Argument(_always("64MiB"), ("budget", "budget", "small budget"))
_MODEL = Argument(lambda world: world.net(), ("model",))
_MACHINE = Argument(_always(None), ("machine",), ("None",))
_BATCH = Argument(_always(torch.ones(2, 8)), ("batch",))
_EXAMPLE = Argument(lambda world: (torch.ones(2, 8),), ("junk",), ("None",))


def _trained(model: Any, *batch: Any) -> None:
    found = model(*batch)
    if isinstance(found, torch.Tensor) and found.requires_grad:
        found.sum().backward()  # type: ignore[no-untyped-call]


def _compile(world: World, given: Mapping[str, Any]) -> None:
    options = {name: value for name, value in given.items() if name not in ("model", "batch")}
    _trained(tightrope.compile(given["model"], **{**options, "progress": options.get("progress", False)}),
             given["batch"])  # fmt: skip


def _backend(world: World, given: Mapping[str, Any]) -> None:
    options = {name: value for name, value in given.items() if name not in ("model", "batch")}
    _trained(torch.compile(given["model"], backend="tightrope", options=options), given["batch"])


def _plain(world: World, given: Mapping[str, Any]) -> None:
    _trained(given["model"], given["batch"])


def _plain_backend(world: World, given: Mapping[str, Any]) -> None:
    _trained(torch.compile(given["model"], backend="eager"), given["batch"])


def _step(world: World, given: Mapping[str, Any]) -> None:
    options = {name: value for name, value in given.items() if name not in ("fn", "batch")}
    train = tightrope.step(given["fn"], **options)
    train(given["batch"])
    train(given["batch"])


def _step_function(world: World) -> Any:
    model = world.net()
    found = lambda x: model(x).square().mean()  # noqa: E731
    found.model = model  # type: ignore[attr-defined]
    return found


def _step_right(world: World, given: Mapping[str, Any]) -> None:
    """Let model and optimizer be those of the function, unless they are wrong."""
    model = getattr(given["fn"], "model", None) or world.net()
    options = {**given, "model": model if given["model"] is None else given["model"]}
    if isinstance(options["optimizer"], str) and options["optimizer"] == "right":
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(world, options)


def _step_plain(world: World, given: Mapping[str, Any]) -> None:
    given["fn"](given["batch"]).backward()


def _replay(world: World, given: Mapping[str, Any]) -> None:
    guard, model = tightrope.replay(**given), world.net()
    for _ in range(5):
        with guard:
            _trained(model, torch.ones(2, 8))


def _save(world: World, given: Mapping[str, Any]) -> None:
    model = given["step"]
    if isinstance(model, str) and model == "right":
        model = tightrope.compile(world.net(), budget="64MiB", progress=False)
        _trained(model, torch.ones(2, 8))
    tightrope.save(model, given["path"], given["args"], given["kwargs"])


def _loaded(world: World, given: Mapping[str, Any]) -> None:
    step = tightrope.load(given["path"], budget=given["budget"], verify=given["verify"])
    step(given["inputs"], tangents=given["tangents"])


def _graph(world: World) -> Any:
    return tightrope.capture(world.net(), torch.ones(2, 8))


def _plan(world: World) -> tightrope.Plan:
    return tightrope.Plan.load(world["plan"])


DOORS: Final[dict[str, Door]] = {
    "compile": Door(
        {"model": _MODEL, "budget": _BUDGET, "example": _EXAMPLE, "verify": _VERIFY, "machine": _MACHINE,
         "seed": _SEED, "seconds": _SECONDS, "progress": _PROGRESS, "batch": _BATCH},
        _compile, _plain,
    ),
    "torch.compile": Door(
        {"model": _MODEL, "budget": _BUDGET, "verify": _VERIFY, "seed": _SEED, "seconds": _SECONDS,
         "progress": _PROGRESS, "batch": _BATCH},
        _backend, _plain_backend,
    ),
    "step": Door(
        {"fn": Argument(_step_function, ("function",)), "budget": _BUDGET,
         "model": Argument(_always(None), ("model",), ("None",)),
         "optimizer": Argument(_always("right"), ("optimizer",), ("None",)), "verify": _VERIFY, "seed": _SEED,
         "seconds": _SECONDS, "progress": _PROGRESS, "batch": _BATCH},
        _step_right, _step_plain,
    ),
    "replay": Door(
        {"budget": _BUDGET,
         "external": Argument(_always(None), ("junk",), ("None", "zero", "True")),
         "warmup": Argument(_always(1), ("junk",), ("zero", "True")),
         "seconds": Argument(_always(0.5), ("junk",), ("zero", "fraction", "True"))},
        _replay,
    ),
    "capture": Door(
        {"model": _MODEL, "batch": _BATCH},
        lambda world, given: tightrope.capture(given["model"], given["batch"]), _plain,
    ),
    "plan": Door(
        {"graph": Argument(_graph, ("junk",)), "budget": _BUDGET, "machine": _MACHINE,
         "planner": Argument(_always("greedy"), ("junk",)), "seconds": _SECONDS, "seed": _SEED},
        lambda world, given: tightrope.plan(**given),
    ),
    "save": Door(
        {"step": Argument(_always("right"), ("model",)),
         "path": Argument(lambda world: str(world.folder / "new.step"), ("output", "junk"),
                          ("unicode", "long text", "escape", "empty text", "surrogate", "nul")),
         "args": Argument(lambda world: (torch.ones(2, 8),), ("junk",)),
         "kwargs": Argument(_always(None), ("junk",), ("None",))},
        _save,
    ),
    "load": Door(
        {"path": Argument(lambda world: world["step"], ("step file",)), "budget": _BUDGET, "verify": _VERIFY,
         "inputs": Argument(_always(None), ("junk",), ("None",)),
         "tangents": Argument(_always(None), ("junk",), ("None",))},
        _loaded,
    ),
    "load, inputs": Door(
        {"batch": _BATCH, "name": Argument(_always("input 0"), ("junk",), _NO_KEYS)},
        lambda world, given: tightrope.load(world["step"])({given["name"]: given["batch"]}),
    ),
    "report": Door({"model": Argument(lambda world: world.net(), ("model", "junk"))},
                   lambda world, given: str(tightrope.report(given["model"]))),
    "Machine.load": Door({"path": Argument(lambda world: world["machine"], ("machine file",))},
                         lambda world, given: tightrope.Machine.load(given["path"])),
    "Machine.parse": Door({"text": Argument(_always('name="x"'), ("junk",))},
                          lambda world, given: tightrope.Machine.parse(given["text"])),
    "Plan.load": Door({"path": Argument(lambda world: world["plan"], ("plan file",), ("other plan",))},
                      lambda world, given: tightrope.Plan.load(given["path"])),
    "Plan.save": Door(
        {"path": Argument(lambda world: str(world.folder / "new.plan.json"), ("output", "junk"),
                          ("unicode", "long text", "escape", "empty text", "surrogate", "nul"))},
        lambda world, given: _plan(world).save(given["path"]),
    ),
    "Plan.explain": Door(
        {"graph": Argument(_graph, ("junk",), ("None",)),
         "top": Argument(_always(3), ("junk",), ("zero", "True"))},
        lambda world, given: _plan(world).explain(given["graph"], top=given["top"]),
    ),
    "Plan.diff": Door({"other": Argument(_plan, ("junk",), ("plan",))},
                      lambda world, given: str(_plan(world).diff(given["other"]))),
    "parse_bytes": Door(
        {"text": Argument(_always("9%"), ("budget",)),
         "whole": Argument(_always(10**6), ("junk",), ("True", "huge"))},
        lambda world, given: tightrope.parse_bytes(given["text"], whole=given["whole"]),
    ),
    "format_bytes": Door(
        {"size": Argument(_always(3), ("junk",), ("zero", "negative", "fraction", "True", "huge"))},
        lambda world, given: tightrope.format_bytes(given["size"]),
    ),
}  # fmt: skip
