"""Flat Python code for a schedule: one function per part, no interpreter loop.

Idea        Every `Compute` becomes one call with its overload bound to a local name, every `Free`
            a ``del`` of all names that look into the storage. Views are made again wherever they
            are needed; they cost no bytes. The forward part returns the outputs and the tensors
            that the rest of the schedule needs; the backward part takes them.
Guarantee   Between two steps, exactly the storages that the schedule keeps are referenced.
Complexity  Linear in steps.
Gaps        CPU dispatch costs about 2 to 4 us per op; fused segments are another level.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.build import input_nodes
from tightrope.capture.program import Call, Program, tensor_of
from tightrope.core import Compute, Free, Schedule, StorageId, TightropeError


@dataclass(frozen=True)
class Code:
    """Executable parts of a schedule.

    Attributes:
        forward: takes the list of inputs, empties it, returns (outputs, kept tensors).
        backward: takes (kept tensors, tangents), empties both, returns the gradients; None when
            the program has a single part.
        visible: positions in the kept tensors that the user can also reach (and might change).
        source: the Python text, for people and tests.
    """

    forward: Callable[[list[Any]], tuple[list[Any], list[Any]]]
    backward: Callable[[list[Any], list[Any]], list[Any]] | None
    visible: tuple[int, ...]
    source: str


def emit(program: Program, schedule: Schedule) -> Code:
    """Compile ``schedule`` into flat Python functions.

    Args:
        program: the captured program.
        schedule: steps that a judge has accepted for ``program.graph``.
    """
    split = _split(program, schedule)
    two_parts = program.num_forward_outputs < len(program.outputs)
    back = _Part(program, later=True)
    if two_parts:
        back.steps(schedule, split, len(schedule.steps))
        back_result = back.results(program.outputs[program.num_forward_outputs :])
    front = _Part(program, later=False)
    front.steps(schedule, 0, split)
    front_result = front.results(program.outputs[: program.num_forward_outputs])
    kept, visible = _kept(program, front, back.imports)
    inputs = [_name(node) for node in program.placeholders if not _is_tangent(node)]
    lines = [
        "def forward(args):",
        f"    [{', '.join(inputs)}] = args" if inputs else "    pass",
        "    args.clear()",
    ]
    lines += front.lines
    lines.append(f"    return [{', '.join(front_result)}], [{', '.join(kept)}]")
    if two_parts:
        names = [_name(node) for node in back.imports]
        tangents = [_name(node) for node in program.placeholders if _is_tangent(node)]
        lines += ["", "def backward(kept, tangents):"]
        lines += [f"    [{', '.join(names)}] = kept" if names else "    pass", "    kept.clear()"]
        lines += [
            f"    [{', '.join(tangents)}] = tangents" if tangents else "    pass",
            "    tangents.clear()",
        ]
        lines += back.lines
        lines.append(f"    return [{', '.join(back_result)}]")
    source = "\n".join(lines) + "\n"
    namespace: dict[str, Any] = {**front.constants, **back.constants}
    exec(compile(source, f"<tightrope {program.graph.name or 'plan'}>", "exec"), namespace)
    return Code(namespace["forward"], namespace.get("backward"), visible, source)


def _split(program: Program, schedule: Schedule) -> int:
    """Index of the first step of the second part."""
    if program.num_forward_outputs == len(program.outputs):
        return len(schedule.steps)
    returning = program.graph.boundary - 1
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Compute) and step.op == returning:
            return position
    raise TightropeError("the schedule never returns to the user: it lacks the step that ends the forward.")


def _kept(
    program: Program, front: "_Part", imports: list[torch.fx.Node]
) -> tuple[list[str], tuple[int, ...]]:
    """Expressions for what the backward needs; outputs are detached, or they would keep themselves alive."""
    returned = {
        program.storage_of[node]
        for node in program.outputs[: program.num_forward_outputs]
        if isinstance(node, torch.fx.Node) and node in program.storage_of
    }
    expressions, visible = [], []
    for position, node in enumerate(imports):
        storage = program.storage_of[node]
        external = program.graph.storages[storage].external
        name = _name(node)
        if storage in returned and not external:
            expressions.append(f"{name}.detach()")
        else:
            expressions.append(name)
        if external or storage in returned:
            visible.append(position)
    return expressions, tuple(visible)


@dataclass
class _Part:
    """Lines of one function while they are being written."""

    program: Program
    later: bool
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    imports: list[torch.fx.Node] = field(default_factory=list)
    bound: dict[torch.fx.Node, StorageId] = field(default_factory=dict)

    def steps(self, schedule: Schedule, start: int, end: int) -> None:
        for step in schedule.steps[start:end]:
            if isinstance(step, Compute):
                self.compute(step)
            elif isinstance(step, Free):
                self.free(step.storage)
            else:
                raise TightropeError(
                    f"cannot run a {type(step).__name__} step yet: this build plans recomputation only."
                )

    def compute(self, step: Compute) -> None:
        call = self.program.calls[step.op]
        if call is None:
            return
        self.emit_call(call, dropped=frozenset(step.drop))

    def emit_call(
        self, call: Call, *, dropped: frozenset[StorageId] = frozenset(), view: bool = False
    ) -> None:
        for node in input_nodes(call):
            self.ensure(node)
        target = self.constant(_unwrap(call.target))
        arguments = [self.expression(argument) for argument in call.args]
        arguments += [f"{key}={self.expression(value)}" for key, value in call.kwargs.items()]
        text = f"{target}({', '.join(arguments)})"
        if None in call.results:
            node = call.results[None]
            if self.program.storage_of.get(node, -1) in dropped:
                self.lines.append(f"    {text}")
            else:
                self.bind(node, text)
            return
        wanted = {
            position: node
            for position, node in call.results.items()
            if position is not None and self.program.storage_of.get(node, -1) not in dropped
        }
        self.lines.append(f"    results = {text}")
        for position, node in sorted(wanted.items()):
            self.bind(node, f"results[{position}]")
        self.lines.append("    del results")

    def bind(self, node: torch.fx.Node, text: str) -> None:
        self.lines.append(f"    {_name(node)} = {text}")
        if node in self.program.storage_of:
            self.bound[node] = self.program.storage_of[node]

    def ensure(self, node: torch.fx.Node) -> None:
        """Make the variable of ``node`` exist: bound already, imported, or a view made again."""
        if node in self.bound or (not self.later and node.op == "placeholder"):
            return
        if node.op == "get_attr":
            self.lines.append(f"    {_name(node)} = {self.constant(self.program.constant(node))}")
            self.bound[node] = self.program.storage_of[node]
            return
        if _is_tangent(node):
            return
        empty = None if node in self.program.storage_of else _empty(node)
        if empty is not None:
            self.lines.append(f"    {_name(node)} = {self.constant(empty)}")
            self.bound[node] = -1
            return
        call = self.view_call(node)
        if call is not None:
            self.emit_call(call, view=True)
            return
        if not self.later:
            raise TightropeError(f"the schedule reads {node.name!r} while no copy of it exists.")
        self.imports.append(node)
        self.bound[node] = self.program.storage_of[node]

    def view_call(self, node: torch.fx.Node) -> Call | None:
        if node in self.program.views:
            return self.program.views[node]
        if "getitem" in str(node.target):
            source = node.args[0]
            assert isinstance(source, torch.fx.Node)
            return self.program.views.get(source)
        return None

    def free(self, storage: StorageId) -> None:
        names = [node for node, where in self.bound.items() if where == storage]
        for node in names:
            self.bound.pop(node, None)
        if names:
            self.lines.append(f"    del {', '.join(_name(node) for node in names)}")

    def results(self, nodes: tuple[Any, ...]) -> list[str]:
        for node in nodes:
            if isinstance(node, torch.fx.Node):
                self.ensure(node)
        return [_name(node) if isinstance(node, torch.fx.Node) else repr(node) for node in nodes]

    def expression(self, argument: Any) -> str:
        """Write one argument as Python."""
        if isinstance(argument, torch.fx.Node):
            return _name(argument)
        if isinstance(argument, bool | int | str | None):
            return repr(argument)
        if isinstance(argument, list | tuple):
            inner = ", ".join(self.expression(item) for item in argument)
            return (
                f"[{inner}]"
                if isinstance(argument, list)
                else f"({inner}{',' if len(argument) == 1 else ''})"
            )
        if isinstance(argument, dict):
            return (
                "{" + ", ".join(f"{key!r}: {self.expression(value)}" for key, value in argument.items()) + "}"
            )
        return self.constant(argument)

    def constant(self, value: Any) -> str:
        """Bind a value that has no literal (an overload, a dtype, a float such as inf) to a global name."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = f"{'b' if self.later else 'f'}{len(self.constants)}"
        self.constants[name] = value
        return name


def _unwrap(target: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(target, "_op", target) if _torch.is_overload(target) else target


def _empty(node: torch.fx.Node) -> torch.Tensor | None:
    """A tensor equal to the value of ``node`` when that has no bytes (batch norm saves such in eval mode)."""
    fake = tensor_of(node)
    if not isinstance(fake, torch.Tensor) or fake.untyped_storage().nbytes():
        return None
    with _torch.real_tensors():
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def _name(node: torch.fx.Node) -> str:
    return f"t_{node.name}"


def _is_tangent(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" and str(node.target).startswith("tangents")
