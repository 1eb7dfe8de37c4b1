"""How well traces tell the truth, and what recording costs: ``python -m benchmarks recorder``.

Truths are independent of what they judge: a hook on every autograd node for eager runs (not sequence
numbers), annotated profiles whose annotations are removed for the annotator, and the allocator's own
counters for bytes. Times are CPU times of this thread.
"""

import argparse
import gc
import random
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import tightrope
from benchmarks._measure import bootstrap
from benchmarks.zoo import build, optimizer
from tightrope.core import EventPhase, Module, Trace
from tightrope.judge import compare_traces
from tightrope.record import (
    annotate,
    dump,
    explain,
    forecast,
    module_times,
    parse_profile,
    record_eager,
    record_run,
    tree_of,
)  # fmt: skip
from tightrope.record.foreign import inherit
from tightrope.record.reverse import by_sequence
from tightrope.record.slices import STANDARD, Slice, without_annotations
from tightrope.record.stages import ENGINE, stages

CAPTURED = ("gpt2", "bert", "vit", "resnet18", "unet", "densenet121", "mobilenetv2", "moe")
FOREIGN = ("gpt2", "bert", "vit", "resnet18", "resnet50", "mobilenetv2", "recurrent", "embeddings")
NOT_COUNTED = frozenset({"empty", "zeros", "zero_", "view", "transpose", "as_strided"})
"""Names that the count metric of Hotline leaves out."""


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 128)
        self.first, self.second = nn.LSTMCell(128, 256), nn.LSTMCell(256, 256)
        self.head, self.loss = nn.Linear(256, 2000), nn.CrossEntropyLoss()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        a = b = c = d = torch.zeros(tokens.shape[1], 256)
        losses = []
        for now, following in pairwise(tokens):
            a, b = self.first(self.table(now), (a, b))
            c, d = self.second(a, (c, d))
            losses.append(self.loss(self.head(c), following))
        return torch.stack(losses).mean()


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20_000, 64, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 256), nn.ReLU(), nn.Linear(256, 1))
        self.loss = nn.BCEWithLogitsLoss()
        self.pairs = torch.triu_indices(9, 9, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *[table(ids) for table, ids in zip(self.tables, sparse, strict=True)]], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        loss: torch.Tensor = self.loss(self.top(torch.cat([bottom, products], 1)).squeeze(1), clicked)
        return loss


@dataclass(frozen=True, slots=True)
class _Net:
    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(*self.inputs).backward()
        self.optimizer.step()


def _net(name: str, scale: str) -> _Net:
    torch.manual_seed(0)
    if name in ("recurrent", "embeddings"):
        inputs: tuple[torch.Tensor, ...] = (torch.randint(2000, (12, 16)),)
        model: nn.Module = _Recurrent()
        if name == "embeddings":
            model = _Embeddings()
            inputs = (torch.randn(256, 13), torch.randint(20_000, (8, 256, 4)), torch.rand(256).round())
        return _Net(name, model, inputs, torch.optim.AdamW(model.parameters()))
    case = build(name, scale="bench" if scale == "bench" else "test")
    return _Net(name, case.model, case.inputs, optimizer(case, "adamw"))


def _spans(net: _Net) -> bytes:
    """A profile with one annotation per module call."""
    handles, stack = [], []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            span = record_function(f"span:{path}")
            span.__enter__()
            stack.append(span)

        return hook

    def leave(*_: object) -> None:
        stack.pop().__exit__(None, None, None)

    for path, module in net.model.named_modules():
        handles += [module.register_forward_pre_hook(enter(path)), module.register_forward_hook(leave)]
    for _ in range(2):
        net.step()
    with profile(activities=[ProfilerActivity.CPU]) as watcher:
        net.step()
    for handle in handles:
        handle.remove()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        watcher.export_chrome_trace(str(path))
        return path.read_bytes()


def _truth(slices: Sequence[Slice], modules: Sequence[Module]) -> list[int]:
    """Owners from annotations and sequence numbers; accumulated gradients go with the node before."""
    at = {module.path: number for number, module in enumerate(modules)}
    phases = stages(slices)
    owners = [0] * len(slices)
    spans = {k for k, one in enumerate(slices) if one.name.startswith("span:")}
    for k in spans:
        owners[k] = at[slices[k].name[5:]]
    inherit(slices, owners, frozenset(spans))
    known, last = by_sequence(slices, phases), 0
    nodes = [k for k, one in enumerate(slices) if one.name.startswith(ENGINE)]
    for node in nodes:
        last = owners[known[node]] if node in known else last
        owners[node] = last
    inherit(slices, owners, spans | frozenset(nodes))
    return owners


def foreign(console: Console, scale: str) -> bool:
    """H3: annotations removed, then recovered; both metrics, forward and backward alike."""
    table = Table(
        "net", "ops", "time right %", "forward %", "backward %", "count metric %", "bar", title="H3"
    )
    good = True
    for name in FOREIGN:
        net = _net(name, scale)
        modules = tree_of(net.model)
        slices = parse_profile(_spans(net))
        truth = _truth(slices, modules)
        kept = [
            owner for one, owner in zip(slices, truth, strict=True)
            if not one.annotation or one.name.startswith(STANDARD)
        ]  # fmt: skip
        bare = without_annotations(slices)
        owners = [owner for one, owner in zip(bare, kept, strict=True) if not one.annotation]
        trace = annotate(bare, modules)
        right, total, counts = _scored(trace, owners)
        share = 100 * sum(right.values()) / max(sum(total.values()), 1)
        parts = [100 * right[p] / max(total[p], 1) for p in ("forward", "backward")]
        passed = share >= 97 and counts >= 99
        good &= passed
        table.add_row(
            name, str(len(trace.events)), *[f"{percent:.2f}" for percent in (share, *parts, counts)],
            "met" if passed else "missed",
        )  # fmt: skip
    console.print(table)
    return good


def _scored(trace: Trace, owners: Sequence[int]) -> tuple[Counter[str], Counter[str], float]:
    """Self time on the right module by phase, all self time, and the count metric in percent."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    want: dict[int, Counter[str]] = {}
    have: dict[int, Counter[str]] = {}
    for event, owner, ns in zip(trace.events, owners, trace.self_times(), strict=True):
        if event.phase not in (EventPhase.FORWARD, EventPhase.LOSS, EventPhase.BACKWARD):
            continue
        side = "backward" if event.phase is EventPhase.BACKWARD else "forward"
        total[side] += ns
        right[side] += ns * (event.module == owner)
        if event.name.rpartition("::")[2] not in NOT_COUNTED and side == "forward":
            want.setdefault(owner, Counter())[event.name] += 1
            have.setdefault(event.module, Counter())[event.name] += 1
    wrong = most = 0
    for module in {*want, *have}:
        a, b = want.get(module, Counter()), have.get(module, Counter())
        wrong += sum(((a - b) + (b - a)).values())
        most += max(a.total(), b.total())
    return right, total, 100 * (1 - wrong / max(most, 1))


def eager(console: Console, scale: str) -> bool:
    """H2: ops on modules against a hook on every autograd node; what the recording costs."""
    table = Table("net", "time right %", "recorded/profiled", "recorded/plain", "bar", title="H2")
    good = True
    for name in CAPTURED:
        net = _net(name, scale)
        for _ in range(2):
            net.step()
        share = _eager_share(net)
        hooks, full = _costs(net)
        passed = share >= 97 and hooks[0] <= 1.02 and full[0] <= 1.5
        good &= passed
        table.add_row(name, f"{share:.2f}", hooks[1], full[1], "met" if passed else "missed")
    console.print(table)
    return good


def _eager_share(net: _Net) -> float:
    """Percent of backward and forward self time on the right module.

    The truth: forward ops by the module that is open, noted in a stack of its own; nodes by a walk from
    the outputs of each module back to its inputs, and a hook before and after every node.
    """
    at = {module.path: number for number, module in enumerate(tree_of(net.model))}
    marks: list[tuple[int, int]] = []
    owner_of: dict[object, int] = {}
    open_now = [0]

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            open_now.append(at[path])
            marks.append((time.time_ns(), at[path]))

        return hook

    def leave(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[object, ...], output: object) -> None:
            marks.append((time.time_ns(), open_now[-2]))
            _claim(output, args, open_now.pop(), owner_of)

        return hook

    handles = []
    for path, module in net.model.named_modules():
        handles += [module.register_forward_pre_hook(enter(path)), module.register_forward_hook(leave(path))]
    with record_eager(net.model, memory=False) as recording:
        loss = net.model(*net.inputs)
        for node, owner in owner_of.items():
            _watch(node, owner, marks)
        marks.append((time.time_ns(), -1))
        loss.backward()
    for handle in handles:
        handle.remove()
    trace = recording.trace
    results = recording._profile.profiler.kineto_results  # type: ignore[union-attr]
    base = min(row.start_ns() for row in results.events() if not row.name().startswith("["))
    times = [when - base for when, _ in marks]
    right = total = 0
    for event, ns in zip(trace.events, trace.self_times(), strict=True):
        where = bisect_right(times, event.start) - 1
        if where >= 0 and marks[where][1] >= 0:  # between nodes the engine works for nobody
            total += ns
            right += ns * (marks[where][1] == event.module)
    return 100 * right / max(total, 1)


def _claim(output: object, args: tuple[object, ...], owner: int, owner_of: dict[object, int]) -> None:
    """Give the nodes between the inputs and the outputs of a module to it, unless a child has them."""
    ends = {value.grad_fn for value in _tensors(args) if value.grad_fn is not None}
    waiting = [value.grad_fn for value in _tensors(output) if value.grad_fn is not None]
    seen: set[object] = set(ends)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "AccumulateGrad" not in node.name():
            owner_of.setdefault(node, owner)
        waiting += [following for following, _ in node.next_functions]


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _watch(node: object, owner: int, marks: list[tuple[int, int]]) -> None:
    node.register_prehook(lambda *_: marks.append((time.time_ns(), owner)))  # type: ignore[attr-defined]
    node.register_hook(lambda *_: marks.append((time.time_ns(), -1)))  # type: ignore[attr-defined]


def _costs(net: _Net) -> tuple[tuple[float, str], tuple[float, str]]:
    """CPU time with hooks over the plain profiler, and of the full recording over the plain step."""

    def seconds(run: Callable[[], None]) -> float:
        start = time.thread_time()
        run()
        return time.thread_time() - start

    def plain() -> None:
        net.step()

    def profiled() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as watcher:
            inner.append(seconds(net.step))
        del watcher

    def hooked(memory: bool) -> None:
        with record_eager(net.model, memory=memory):
            inner.append(seconds(net.step))

    inner: list[float] = []
    rows = []
    for _ in range(8):
        inner.clear()
        base = seconds(plain)
        profiled()
        hooked(False)
        hooked(True)
        rows.append((base, *inner))
    hooks = bootstrap([row[2] / row[1] for row in rows[1:]])
    full = bootstrap([row[3] / row[0] for row in rows[1:]])
    return (hooks.median, str(hooks)), (full.median, str(full))


def speed(console: Console, scale: str) -> bool:
    """H4 and H6: analysis time of large profiles, and bytes per event in the file."""
    net = _net("recurrent", scale)
    modules, data = tree_of(net.model), _spans(net)
    bare = without_annotations(parse_profile(data))
    table = Table("events", "analysis, CPU s", "bytes per event", "bar", title="H4, H6 (file)")
    good = True
    for size, limit in ((10_000, 1.0), (217_000, 3.0)):
        many = _repeated(bare, size)
        start = time.thread_time()
        trace = annotate(many, modules)
        spent = time.thread_time() - start
        each = len(dump(trace)) / len(trace.events)
        passed = spent <= limit and each <= 7
        good &= passed
        table.add_row(str(len(many)), f"{spent:.2f}", f"{each:.2f}", "met" if passed else "missed")
    console.print(table)
    return good


def _repeated(slices: Sequence[Slice], size: int) -> list[Slice]:
    """Training steps one after another, until there are ``size`` slices; no two steps take equally long."""
    rng = random.Random(0)
    found: list[Slice] = []
    start = 0
    while len(found) < size:
        pace, first = 1 + rng.random() / 2, len(found)
        found += [
            Slice(
                one.name, start + round(one.start * pace), start + round(one.end * pace), one.thread,
                one.parent + first if one.parent >= 0 else -1, annotation=one.annotation,
            )
            for one in slices[: size - len(found)]
        ]  # fmt: skip
        start = max(one.end for one in found[first:]) + 1000
    return found


def planned(console: Console, scale: str) -> bool:
    """H5: forecast and observed curves of planned whole steps, byte by byte."""
    table = Table(
        "net", "buffers", "peak difference", "curves equal", "allocator agrees", "children add up", "bar",
        title="H5",
    )  # fmt: skip
    good = True
    for name in CAPTURED:
        net = _net(name, scale)
        step = tightrope.step(net.model, budget="100%", model=net.model, optimizer=net.optimizer)
        for _ in range(2):
            step(*net.inputs)
        with record_run(step) as recording:
            step(*net.inputs)
        seen = recording.trace
        said = forecast(recording.graph, recording.plan, classes=recording.classes)
        result = compare_traces(said, seen)
        curve = said.profile() == seen.profile()
        agrees, adds = _allocator_agrees(seen), _adds_up(seen)
        del step, recording  # its budget holds the whole process
        gc.collect()
        passed = result.equal and curve and agrees and adds
        good &= passed
        table.add_row(
            name, str(result.num_buffers), str(result.peak_difference), str(curve), str(agrees), str(adds),
            "met" if passed else "missed",
        )  # fmt: skip
    console.print(table)
    return good


def _allocator_agrees(trace: Trace) -> bool:
    """Whether the allocator's count after each op is the curve's value at that moment."""
    profile = trace.profile()
    (counter,) = trace.counters
    return all(
        value == (profile[tick - 1] if (tick := bisect_right(trace.ticks, when)) else 0)
        or value in profile[max(tick - 8, 0) : tick]
        for when, value in zip(counter.times, counter.values, strict=True)
    )


def _adds_up(trace: Trace) -> bool:
    own = [0] * len(trace.modules)
    for event, ns in zip(trace.events, trace.self_times(), strict=True):
        own[event.module] += ns
    whole = module_times(trace)
    below = [0] * len(whole)
    for position, module in enumerate(trace.modules[1:], start=1):
        below[module.parent] += whole[position]
    return (
        all(a == b + c for a, b, c in zip(whole, own, below, strict=True)) and whole[0] == explain(trace).ns
    )


BARS = {"H2": eager, "H3": foreign, "H4": speed, "H5": planned}


def run(arguments: list[str], console: Console) -> int:
    """Answer the question; exit code 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recorder")
    parser.add_argument("--bars", default=",".join(BARS), help="of " + ", ".join(BARS))
    parser.add_argument("--scale", choices=("test", "bench"), default="bench")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    met = [BARS[bar](console, options.scale) for bar in options.bars.split(",")]
    return 0 if all(met) else 1
