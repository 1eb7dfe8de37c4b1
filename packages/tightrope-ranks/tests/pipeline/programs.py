"""Generated training programs: what ranks do with them, and what one process does."""

import copy
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope_ranks import PipelineOptions, PipelineRun, plan
from tightrope_ranks.pipeline import breadth_first, looped, lower, with_wires
from tightrope_ranks.values.ranks import JointPlan

WIDTH, WORDS, ROWS, RATE = 6, 11, 2, 0.25
CLUSTER = Machine(
    "cluster",
    (Tier("hbm", 2**30, read=1e12),),
    {"matmul": 1e12},
    links=(DeviceLink("link", 1e-6, 1e9),),
    devices=8,
)
Seen: TypeAlias = dict[str, Any]


class Words(nn.Module):
    """Words to vectors."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.weight)


class Head(nn.Module):
    """Vectors to words."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


class Mix(nn.Module):
    """Adds a layer to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        seed: of weights and data.
        ranks: of the pipeline.
        per_rank: stages of each.
        micro: micro-batches.
        kinds: of the layers.
        tied: groups of layers that share parameters.
        frozen: layers that are.
        calls: in order.
        split: whether backwards are divided.
        again: whether forwards are computed again.
    """

    seed: int
    ranks: int
    per_rank: int
    micro: int
    kinds: tuple[str, ...]
    tied: tuple[tuple[int, ...], ...]
    frozen: frozenset[int]
    calls: tuple[str, ...]
    split: bool = False
    again: bool = False


def generated(seed: int, ranks: int) -> Program:
    """Draw a program."""
    draw = random.Random(f"{seed} {ranks}")
    per_rank = draw.choice((1, 1, 2))
    count = ranks * per_rank + draw.randint(0, 3)
    again = draw.random() < 0.25
    words = draw.random() < 0.5
    plain = ["mix", "mix", "linear", "tanh"] + ([] if again else ["norm"])
    kinds = [draw.choice(plain) for _ in range(count)]
    mixes = draw.sample(range(count), 2)
    for k in mixes:  # something to train and to tie
        kinds[k] = "mix"
    if words:
        kinds[0], kinds[-1] = "words", "head"
    tied = [tuple(sorted(mixes))] if draw.random() < 0.4 and all(kinds[k] == "mix" for k in mixes) else []
    if words and draw.random() < 0.6:
        tied.append((0, count - 1))
    share = draw.choice((0, 0, 1, 2))
    frozen = set(range(draw.randint(1, count - 1))) if share == 1 else set()
    frozen |= {k for k in range(count) if share and draw.random() < 0.2}
    calls = ["step", *draw.choices(("step", "zero", "update", "evaluate", "partial"), k=draw.randint(2, 5))]
    program = Program(
        seed,
        ranks,
        per_rank,
        draw.randint(1, 5),
        tuple(kinds),
        tuple(tied),
        frozenset(frozen),
        (*calls, "step"),
        draw.random() < 0.3 and not again,
        again,
    )
    trains = any(p.requires_grad for layer in layers(program) for p in layer.parameters())
    return program if trains else replace(program, frozen=frozenset())


def layers(program: Program) -> list[nn.Module]:
    """Make the layers of a program."""
    torch.manual_seed(program.seed)
    make: dict[str, Callable[[], nn.Module]] = {
        "mix": Mix,
        "linear": lambda: nn.Linear(WIDTH, WIDTH),
        "tanh": nn.Tanh,
        "norm": lambda: nn.BatchNorm1d(WIDTH),
        "words": lambda: Words(nn.Parameter(torch.randn(WORDS, WIDTH))),
        "head": lambda: Head(nn.Parameter(torch.randn(WORDS, WIDTH))),
    }
    found = [make[kind]() for kind in program.kinds]
    for first, *others in program.tied:
        for other in others:
            one, two = found[first], found[other]
            if isinstance(one, Mix) and isinstance(two, Mix):
                two.inner = one.inner
            else:
                two.weight = one.weight
    for k in program.frozen:
        found[k].requires_grad_(False)
    return found


def data(program: Program, call: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch for a call."""
    draw = torch.Generator().manual_seed(100 * program.seed + call)
    words = program.kinds[0] == "words"
    x = torch.randint(WORDS, (rows,), generator=draw) if words else torch.randn(rows, WIDTH, generator=draw)
    y = (
        torch.randint(WORDS, (rows,), generator=draw)
        if program.kinds[-1] == "head"
        else torch.randn(rows, WIDTH, generator=draw)
    )
    return x, y


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Price an output."""
    if target.dtype == torch.int64:
        return nn.functional.cross_entropy(output, target)
    return nn.functional.mse_loss(output, target)


def planned(program: Program) -> JointPlan:
    """Plan a program."""
    x, y = data(program, 0, ROWS)
    options = PipelineOptions(
        (program.per_rank,),
        fold=program.seed % 2 == 0,
        split=program.split,
        again=False,
        ascending=True,
        seconds=0.0,
    )
    made = plan(
        layers(program),
        x,
        y,
        loss,
        ranks=program.ranks,
        micro_batches=program.micro,
        machine=CLUSTER if program.seed % 2 == 0 else None,
        options=options,
    )
    if program.again and made.work.owners == looped(program.ranks, program.per_rank):
        orders = with_wires(made.work, breadth_first(program.ranks, program.per_rank, program.micro))
        some = [(s, m) for s in range(len(made.work.stages)) for m in range(program.micro) if (s + m) % 2]
        made = lower(made.work, made.machine, orders, again=some)
    return made


def stages(program: Program, made: JointPlan) -> list[nn.Sequential]:
    """Cut the layers as the plan does, with copies of what is tied between stages."""
    whole, count = layers(program), len(made.work.stages)
    cuts = [len(whole) * k // count for k in range(count + 1)]
    return [copy.deepcopy(nn.Sequential(*whole[cuts[k] : cuts[k + 1]])) for k in range(count)]


def _update(modules: Iterable[nn.Module]) -> None:
    with torch.no_grad():
        for one in {id(p): p for module in modules for p in module.parameters()}.values():
            if one.grad is not None:
                one.sub_(RATE * one.grad)


def _state(modules: Mapping[int, nn.Module]) -> Seen:
    found: Seen = {}
    for stage, module in modules.items():
        for name, one in module.named_parameters():
            found[f"{stage}.{name}"] = one.detach().numpy().copy()
            found[f"{stage}.{name}.grad"] = None if one.grad is None else one.grad.numpy().copy()
        for name, buffer in module.named_buffers():
            found[f"{stage}.{name}"] = buffer.numpy().copy()
    return found


def _train(modules: Iterable[nn.Module], on: bool) -> None:
    for module in modules:
        module.train(on)


def on_rank(rank: int, num_ranks: int, given: list[tuple[Program, JointPlan]]) -> list[list[Seen]]:
    """Run programs on this rank, or on the first ranks alone; return what is there after each call."""
    groups = {count: dist.new_group(range(count)) for count in range(2, num_ranks + 1)}
    found: list[list[Seen]] = []
    for program, made in given:
        if rank >= program.ranks:
            found.append([])
            continue
        mine = {s: one for s, one in enumerate(stages(program, made)) if s in made.work.local(rank)}
        run, seen = PipelineRun(made, mine, loss, group=groups[program.ranks]), []
        for call, what in enumerate(program.calls):
            rows, said = program.micro * ROWS, ""
            results: list[torch.Tensor] = []
            if what == "step":
                x, y = data(program, call, rows)
                results = run.step(*([x] if 0 in mine else []), target=y)
            elif what == "partial":
                x, y = data(program, call, rows - 1)
                try:
                    run.step(*([x] if 0 in mine else []), target=y)
                except TightropeError as error:
                    said = str(error)
            elif what == "evaluate":
                x, y = data(program, call, rows + call % 3)
                _train(mine.values(), call % 2 == 0)
                results = run.evaluate(x, target=y if call % 2 else None)
                assert all(one.training == (call % 2 == 0) for one in mine.values())
                _train(mine.values(), True)
            elif what == "zero":
                for one in mine.values():
                    one.zero_grad(set_to_none=call % 2 == 0)
            else:
                _update(mine.values())
            results_ = [one.detach().numpy().copy() for one in results]
            seen.append(_state(mine) | {"said": said, "results": results_})
        found.append(seen)
    return found


def alone(program: Program, made: JointPlan, *, apart: bool) -> list[Seen]:
    """Run a program in one process, in plain torch.

    With ``apart``, a parameter that stages share is one per stage, and their gradients are summed behind
    each step, from the last stage to the first; else it is one parameter.
    """
    cut = stages(program, made)
    if not apart:
        whole, count = layers(program), len(cut)
        cuts = [len(whole) * k // count for k in range(count + 1)]
        cut = [nn.Sequential(*whole[cuts[k] : cuts[k + 1]]) for k in range(count)]
    groups = _shared(program, made, cut) if apart else []
    seen = []
    for call, what in enumerate(program.calls):
        rows = program.micro * ROWS
        results: list[torch.Tensor] = []
        if what == "step":
            before = [[p.grad for p in group] for group in groups]
            for group in groups:
                for p in group:
                    p.grad = None
            x, y = data(program, call, rows)
            for part, wanted in zip(x.chunk(program.micro), y.chunk(program.micro), strict=True):
                results.append(loss(nn.Sequential(*cut)(part), wanted))
                (results[-1] / program.micro).backward()  # type: ignore[no-untyped-call]
            for group, earlier in zip(groups, before, strict=True):
                total = torch.stack([p.grad for p in group if p.grad is not None]).cumsum(0)[-1]
                for p, grad in zip(group, earlier, strict=True):
                    p.grad = total.clone() if grad is None else grad + total
        elif what == "evaluate":
            x, y = data(program, call, rows + call % 3)
            _train(cut, call % 2 == 0)
            with torch.no_grad():
                results = [nn.Sequential(*cut)(part) for part in x.tensor_split(program.micro)]
                if call % 2:
                    parts = y.tensor_split(program.micro)
                    results = [loss(one, two) for one, two in zip(results, parts, strict=True)]
            _train(cut, True)
        elif what == "zero":
            for one in cut:
                one.zero_grad(set_to_none=call % 2 == 0)
        elif what == "update":
            _update(cut)
        results_ = [one.detach().numpy().copy() for one in results]
        seen.append(_state(dict(enumerate(cut))) | {"results": results_})
    return seen


def _shared(program: Program, made: JointPlan, cut: list[nn.Sequential]) -> list[list[nn.Parameter]]:
    """Find copies of one parameter, ordered as their sum is: by rank of the last stage, then by stage."""
    whole, count = layers(program), len(cut)
    cuts = [len(whole) * k // count for k in range(count + 1)]
    original = [nn.Sequential(*whole[cuts[k] : cuts[k + 1]]) for k in range(count)]
    users: dict[int, dict[int, nn.Parameter]] = {}
    for stage in reversed(range(count)):
        for one, its in zip(original[stage].parameters(), cut[stage].parameters(), strict=True):
            if one.requires_grad:
                users.setdefault(id(one), {})[stage] = its
    found = []
    for copies in users.values():
        ranks = list(dict.fromkeys(made.work.owners[stage] for stage in copies))
        if len(copies) > 1:
            found.append([p for r in ranks for s, p in copies.items() if made.work.owners[s] == r])
    return found


def refusals(rank: int, num_ranks: int, given: list[tuple[Program, JointPlan]]) -> dict[str, str]:
    """Do what is wrong on ranks 0 and 1; return what is said."""
    pair, own = dist.new_group([0, 1]), [dist.new_group([one]) for one in range(num_ranks)][rank]
    found: dict[str, str] = {}
    if rank > 1:
        return found
    program, made = given[0]
    x, y = data(program, 0, program.micro * ROWS)

    def tried(name: str, call: Callable[[], Any]) -> None:
        try:
            found[name] = f"done: {len(call())}"
        except (TightropeError, torch.OutOfMemoryError) as error:
            found[name] = f"{type(error).__name__}: {error}"

    def run(**more: Any) -> PipelineRun:
        mine = {s: one for s, one in enumerate(stages(program, made)) if s in made.work.local(rank)}
        return PipelineRun(made, mine, group=pair, **more)

    one = run(loss=loss)
    tried("rows of the input", lambda: one.step(x[:-1], target=y))
    tried("rows of the target", lambda: one.step(x, target=y[1:]))
    tried("width", lambda: one.step(x[:, 1:], target=y))
    tried("no input", lambda: one.step(target=y))
    tried("no target", lambda: one.step(x))
    tried("two calls", lambda: one.step(x, target=y) if rank else one.evaluate(x, target=y))
    tried("no rows", lambda: one.evaluate(x[:0], target=y))
    tried("no rows of the target", lambda: one.evaluate(x, target=y[:0]))
    tried("nothing to evaluate", lambda: one.evaluate(target=y))
    for call, its in (("step", one.step), ("evaluate", one.evaluate)):
        tried(f"dtype of the input, {call}", lambda its=its: its(x.double(), target=y))
        tried(f"dtype of the target, {call}", lambda its=its: its(x, target=y.long()))
        tried(f"a list, {call}", lambda its=its: its(x.tolist(), target=y))
        tried(f"a word, {call}", lambda its=its: its(x, target="y"))
    tried("other rows", lambda: one.evaluate(x, target=y[1:]))
    tried("no loss", lambda: run().step(x, target=y))
    tried("loss of the last stage", lambda: run(loss=loss if one.last else None).step(x, target=y))
    tried("few rows", lambda: one.evaluate(x[:1], target=y[:1]))
    wide, rows = nn.Linear(512, 512), torch.randn(8, 512)
    alone_ = plan([wide], rows[:4], rows[:4], loss, ranks=1, micro_batches=2)
    held = PipelineRun(alone_, {0: wide}, loss, group=own)
    held.step(rows, target=rows)
    held.limit = allocator().stats().charged + 4096
    tried("limit", lambda: held.step(rows, target=rows))
    held.limit = None
    tried("behind the limit", lambda: held.step(rows, target=rows))
    return found


def both(rank: int, num_ranks: int, given: list[tuple[Program, JointPlan]], wrong: Any) -> Any:
    """Run programs, and do what is wrong, in one start of the processes."""
    return on_rank(rank, num_ranks, given), refusals(rank, num_ranks, wrong)
