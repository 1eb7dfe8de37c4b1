"""Run one rank's plan: the judged executable as code, behind an autograd node.

Idea        Capture the rank's model, measure what each op allocates, price it by a machine's table (the same
            on every rank, where measured times would not be), plan, compare with the other ranks, lower,
            judge, emit. Forward and backward of the plan are those of one autograd node.
Guarantee   Before anything runs, all ranks know that they hold the same executable, so a gather that is run
            again is run again by all. Gradients are those of the module, bit for bit, where
            each rank's ops are deterministic.
Complexity  One capture, one search
Gaps        One shape of input; the allocator's limit is not set, see `tightrope.compile` for one process.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from tightrope.capture import capture_program, measured
from tightrope.core import DeviceLink, Graph, Machine, Plan, TightropeError, parse_bytes
from tightrope.lower import lower as lower_plan
from tightrope.lower import peak_bytes
from tightrope.plan import solve
from tightrope.price import PriceStore
from tightrope.run.execute.emit import Code
from tightrope.run.execute.prepared import Prepared, prepare
from tightrope.run.ledger.accounts import accounts
from tightrope_ranks.judge.collectives import check_collectives, meetings
from tightrope_ranks.sequence.collectives import alone, group_named, sum_in_place
from tightrope_ranks.sequence.graph import collectives_again
from tightrope_ranks.sequence.layers import Stack
from tightrope_ranks.sequence.policies import gather_again, schedule_of
from tightrope_ranks.sequence.price import priced


@dataclass(frozen=True, eq=False)
class PlannedRank:
    """One rank's plan, ready to run: call it with rows as the module is called.

    Attributes:
        model: whose parameters it reads, and whose gradients it makes.
        prepared: graph, plan and judged executable.
        real: the caller's tensors in the order of the graph's inputs.
        at: position of the rows among them.
        terms: (input, number of gradients of it behind the first); they are added in that order.
    """

    model: torch.nn.Module
    prepared: Prepared
    real: tuple[Any, ...]
    at: int
    terms: tuple[tuple[int, int], ...] = ()

    @property
    def graph(self) -> Graph:
        """What it computes."""
        return self.prepared.graph

    @property
    def plan(self) -> Plan:
        """How."""
        return self.prepared.plan

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Run the forward; the backward of what it returns is the plan's."""
        was = self.real[self.at]
        if (rows.shape, rows.dtype, rows.requires_grad) != (was.shape, was.dtype, was.requires_grad):
            raise TightropeError(
                f"rows {tuple(rows.shape)} of {rows.dtype}, requires_grad={rows.requires_grad}: the plan is "
                f"for {tuple(was.shape)} of {was.dtype}, requires_grad={was.requires_grad}: plan again."
            )
        given = list(self.real)
        given[self.at] = rows
        return _Planned.apply(self.prepared.code, self.terms, *given)  # type: ignore[no-any-return, no-untyped-call]


class _Planned(torch.autograd.Function):
    """Forward and backward of a plan."""

    @staticmethod
    def forward(ctx: Any, code: Code, terms: tuple[tuple[int, int], ...], *given: Any) -> torch.Tensor:
        outputs, ctx.kept = code.parts[0]([], [value.detach() for value in given])
        ctx.code, ctx.terms, ctx.num_given = code, terms, len(given)
        (result,) = outputs
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if ctx.kept is None:
            raise TightropeError("backward ran twice on one forward: run the forward again.")
        kept, ctx.kept = ctx.kept, None
        gradients, _ = ctx.code.parts[1](kept, [grads[0].contiguous()])
        later = iter(gradients[ctx.num_given :])
        for number, num in ctx.terms:
            for term in islice(later, num):
                gradients[number].add_(term)
        return None, None, *gradients[: ctx.num_given]


def plan_rank(
    model: Stack,
    rows: torch.Tensor,
    *,
    budget: str | int,
    machine: Machine,
    link: DeviceLink,
    seconds: float | None = None,
) -> PlannedRank:
    """Plan this rank's layers under a limit on what the step makes, and get them ready to run.

    Call it on every rank of the group, with the same arguments and rows of the same shape.

    Args:
        model: this rank's part; the division says how it is divided. Leave ``regather`` off.
        rows: this rank's rows, as the model is called with.
        budget: bytes for what ops make (activations, gradients), beside parameters and inputs: ``"64MiB"``,
            or a share of what the step takes where nothing runs again but gathers, such as ``"40%"``.
        machine: profile that prices ops.
        link: between neighbours of the group.
        seconds: of search, None = a fixed effort, so that equal ranks find equal plans.

    Raises:
        InfeasibleError: no plan fits.
        TightropeError: ranks hold different plans.
    """
    program, real = capture_program(model, (rows,))
    store = PriceStore((*program.graph.environment, ("collectives", "alone")))
    with alone():
        program = measured(program, real, accounts().allocator, store=store)
    graph = priced(collectives_again(program.graph), machine, link)
    least = peak_bytes(lower_plan(graph, schedule_of(graph, gather_again(graph))))
    size = parse_bytes(budget, whole=least)
    plan = solve(graph, budget=graph.persistent + size, machine=None, seconds=seconds)
    prepared = prepare(graph, plan, None)
    agree(prepared, model.division.group, model.division.ranks)
    at = next(k for k, value in enumerate(real) if value is rows)
    return PlannedRank(model, prepared, tuple(real), at, program.terms)


def agree(prepared: Prepared, group: str, ranks: int) -> None:
    """Refuse to go on where the ranks of the world do not run their collectives alike.

    Raises:
        JudgeError: says which ranks would wait, or for what.
        TightropeError: a rank plans without a process group.
    """
    if ranks == 1:
        return
    members = group_named(group, ranks)
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, prepared.executable.fingerprint, group=members)
    if len(set(found)) == 1:
        check_collectives([prepared.executable] * ranks, {group: range(ranks)})
        return
    lists: list[Any] = [None] * ranks
    dist.all_gather_object(lists, [meeting[:5] for meeting in meetings(prepared.executable)], group=members)
    other = next(rank for rank, calls in enumerate(lists) if calls != lists[0] or found[rank] != found[0])
    raise TightropeError(
        f"ranks 0 and {other} hold different plans ({len(lists[0])} and {len(lists[other])} collectives). "
        "Call plan_rank on all of them with the same arguments, shapes and versions."
    )


def divide(whole: Stack, part: Stack, rank: int) -> None:
    """Copy one rank's part of the weights of a serial model.

    Args:
        whole: in ``serial`` mode.
        part: divided among ``part.division.ranks``.
        rank: which part.
    """
    ranks = part.division.ranks
    with torch.no_grad():
        for source, target in zip(whole.layers, part.layers, strict=True):
            for name, value in source.named_parameters():
                target.get_parameter(name).copy_(part_of(name, value, rank, ranks))


def part_of(name: str, value: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """The part of a parameter, or of its gradient, that one rank holds.

    ``qkv`` holds query, key and value head by head, so its rows divide by heads; ``out`` and ``down`` divide
    by columns; norms and the biases behind a sum are whole on every rank.
    """
    if name in ("out.weight", "down.weight"):
        return value.chunk(ranks, dim=1)[rank]
    if name.startswith(("qkv.", "up.")):
        return value.chunk(ranks, dim=0)[rank]
    return value


def sum_shared_gradients(model: Stack) -> None:
    """Add up, over the ranks, the gradients of what every rank holds whole and uses for its own rows.

    In ``sequence`` mode these are norms and the biases behind scatters: one collective for all of them.
    """
    if model.division.mode != "sequence" or model.division.ranks == 1:
        return
    shared = [
        parameter.grad
        for name, parameter in model.named_parameters()
        if not name.rpartition("layers.")[2].partition(".")[2].startswith(("qkv.", "up."))
        and not name.endswith(("out.weight", "down.weight"))
        and parameter.grad is not None
    ]
    flat = torch.cat([grad.reshape(-1) for grad in shared])
    sum_in_place(flat, model.division.ranks, model.division.group)
    for grad, found in zip(shared, torch.split(flat, [grad.numel() for grad in shared]), strict=True):
        grad.copy_(found.view_as(grad))
