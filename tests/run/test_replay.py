import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tightrope.core import BudgetSyntaxError, InfeasibleError, TightropeError
from tightrope.native.build import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.run.ledger.accounts import Accounts, accounts
from tightrope.run.ledger.uncounted import uncounted_bytes
from tightrope.run.session.replay import Replay, replay

enforced = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
Step = Callable[[], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _short_collections() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 8))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 8),
    )  # fmt: skip


SHAPES = {mlp: (16, 32), convnet: (8, 3, 16, 16)}


def training_step(build: Callable[[], nn.Module]) -> Step:
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)

    def step() -> torch.Tensor:
        x = torch.randn(SHAPES[build], generator=generator)
        y = torch.randint(8, SHAPES[build][:1], generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def sized(*sizes: int) -> None:
    """Allocate blocks that die in reverse order."""
    kept = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    while kept:
        kept.pop()


def broken() -> None:
    """Begin as `sized` does, then fail."""
    first = torch.empty(1000, dtype=torch.uint8)
    raise ZeroDivisionError(first.numel())


def ready(budget: str = "1GiB", sizes: tuple[int, ...] = (1000, 2000, 3000)) -> Replay:
    """A replay with a plan for `sized`."""
    guard = replay(budget)
    for _ in range(3):
        with guard:
            sized(*sizes)
    assert guard.phase == "replay"
    return guard


# the promise


@enforced
@pytest.mark.parametrize("build", [mlp, convnet])
def test_a_training_loop_is_unchanged_and_every_allocation_is_as_planned(
    build: Callable[[], nn.Module],
) -> None:
    step = training_step(build)
    plain = [step().item() for _ in range(6)]
    step = training_step(build)
    guard, losses = replay("1GiB"), []
    for _ in range(6):
        with guard:
            loss = step()
        losses.append(loss.item())
    guard.close()
    assert losses == plain
    assert (guard.steps, guard.misses, guard.outside_bytes, guard.divergence) == (6, 0, 0, None)
    assert guard.trace is not None
    assert guard.hits == 3 * len(guard.trace.buffers)
    assert (guard.level, guard.enforced) == ("L0", True)


@enforced
def test_planned_addresses_do_not_overlap_in_time_and_survivors_stay_outside() -> None:
    step = training_step(convnet)
    guard = replay("1GiB")
    for _ in range(4):
        with guard:
            loss = step()
    trace, arena = guard.trace, guard.arena
    assert trace is not None
    inside = [b for b in trace.buffers if b.offset >= 0]
    assert all((b.offset < 0) == (b.end == trace.num_events) for b in trace.buffers)
    assert max(b.offset + -(-b.bytes // 64) * 64 for b in inside) == arena
    for k, a in enumerate(inside):
        for b in inside[:k]:
            apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert apart or b.end <= a.start
    assert trace.peak <= guard.live_peak <= guard.charged_peak <= guard.budget
    guard.close()
    del loss


@enforced
def test_the_smallest_budget_runs_and_64_bytes_less_do_not() -> None:
    step = training_step(mlp)
    roomy = replay("1GiB", seconds=0.2)
    for _ in range(4):
        with roomy:
            step()
    need, external = roomy.charged_peak, roomy.external
    roomy.close()
    exact = replay(need, external=external, warmup=0, seconds=0.2)
    for _ in range(5):
        with exact:
            step()
    assert exact.charged_peak == need
    assert exact.misses == 0
    exact.close()
    short = replay(need - 64, external=external, warmup=0, seconds=0.2)
    live = allocator().stats().live
    with pytest.raises((torch.OutOfMemoryError, InfeasibleError)), short:
        step()
    step()
    assert allocator().stats().live == live
    assert allocator().limit is None


@enforced
def test_a_refused_step_leaks_nothing_and_the_next_one_is_right() -> None:
    guard = ready()
    native = allocator()
    for _ in range(20):
        before = native.stats().live
        with pytest.raises(torch.OutOfMemoryError), guard:
            sized(1000, 2**31)
        assert native.stats().live == before
        with guard:
            sized(1000, 2000, 3000)
        assert native.limit is None
    guard.close()


@enforced
def test_what_cannot_be_placed_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = replay(allocator().stats().charged + 4096, external=0, warmup=0)

    class Wasteful:
        offsets, peak = (0, 4096, 8192), 12288

    monkeypatch.setattr("tightrope.run.session.replay.place", lambda blocks, *, seconds: Wasteful)
    with (
        pytest.raises(
            InfeasibleError, match=r"smallest feasible found[^~]*planned addresses +12\.00 KiB"
        ) as refused,
        guard,
    ):
        sized(640, 1280, 1920)
    assert (
        refused.value.lower_bound == guard.charged_peak <= guard.budget < (refused.value.smallest_found or 0)
    )
    assert guard.phase == "record"


# divergences


@enforced
def test_a_tensor_kept_across_steps_is_never_overwritten() -> None:
    guard = ready()
    kept = []
    for value in range(3):
        with guard:
            tensor = torch.empty(1000, dtype=torch.uint8).fill_(value)
            sized(2000, 3000)
            kept.append(tensor)
            del tensor
    assert [set(tensor.tolist()) for tensor in kept] == [{0}, {1}, {2}]
    assert guard.misses == 0
    guard.close()
    assert [set(tensor.tolist()) for tensor in kept] == [{0}, {1}, {2}]


@enforced
def test_a_tensor_kept_within_the_step_is_a_divergence() -> None:
    guard = replay("1GiB")

    def step(*, keep: bool) -> int:
        first = torch.full((1000,), 7, dtype=torch.uint8)
        second = first if keep else None
        del first
        sized(1000)
        return int(second.numpy().sum()) if second is not None else 7000

    for keep in (False, False, False, False, True):
        with guard:
            assert step(keep=keep) == 7000
    assert guard.divergence is not None
    assert (guard.divergence.reason, guard.divergence.outside) == ("overlap", 1024)
    assert guard.outside_bytes == 1024
    with guard:
        step(keep=True)
    with guard:
        step(keep=True)
    assert (guard.phase, guard.misses) == ("replay", 1)
    guard.close()


@enforced
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [((1000, 2064, 3000), "size"), ((1000, 2000, 3000, 4), "past end"), ((1000, 2000), "short")],
)
def test_another_sequence_is_a_divergence_and_is_recorded_next(sizes: tuple[int, ...], reason: str) -> None:
    guard = ready()
    with guard:
        sized(*sizes)
    assert guard.divergence is not None
    assert guard.divergence.reason == reason
    assert (guard.phase, guard.arena) == ("record", 0)
    for _ in range(2):
        with guard:
            sized(*sizes)
    assert guard.phase == "replay"
    assert guard.hits == guard.divergence.index + len(sizes)
    guard.close()


@enforced
def test_a_loop_that_never_repeats_is_recorded_less_and_less_often() -> None:
    guard, phases = replay("1GiB", seconds=0.01), []
    for number in range(40):
        phases.append(guard.phase)
        with guard:
            sized(1000 + 64 * number)
    assert phases.count("record") == phases.count("replay") == 6
    guard.close()


@enforced
def test_when_the_arena_no_longer_fits_the_step_is_recorded_again() -> None:
    native = allocator()
    guard = replay(native.stats().charged + 2**16, external=0, warmup=0)
    with guard:
        sized(1000, 2000)
    assert (guard.phase, guard.arena) == ("replay", 3072)
    taken = torch.empty(2**16 - 3072 + 64, dtype=torch.uint8)
    with guard:
        sized(1000)
    assert (guard.steps, guard.phase, guard.arena) == (2, "replay", 1024)
    guard.close()
    del taken


# rules


@enforced
def test_an_exception_in_the_step_keeps_the_plan_and_takes_the_limit_off() -> None:
    guard = ready()
    with pytest.raises(ZeroDivisionError), guard:
        broken()
    assert (guard.steps, guard.phase, guard.divergence) == (3, "replay", None)
    assert allocator().limit is None
    with guard:
        sized(1000, 2000, 3000)
    assert guard.misses == 0
    guard.close()


@enforced
def test_entering_twice_is_refused() -> None:
    guard = replay("1GiB")
    with guard, pytest.raises(TightropeError, match="inside a step already"):
        guard.__enter__()
    assert guard.steps == 1


def test_a_budget_is_checked_at_once() -> None:
    with pytest.raises(BudgetSyntaxError):
        replay("0.9")
    with pytest.raises(InfeasibleError, match=r"tensors that exist +2\.00 KiB"):
        replay("1KiB", external=2048)


@enforced
def test_only_tensors_that_the_allocator_did_not_make_are_uncounted() -> None:
    native = allocator()
    gc.collect()
    before = uncounted_bytes(native.owns)
    counted = torch.zeros(1000)
    shared = torch.zeros(1000).share_memory_()
    views = shared[:10], shared[10:]
    leaf = nn.Parameter(torch.zeros(4))
    leaf.grad = torch.frombuffer(bytearray(16), dtype=torch.float32)
    sparse = torch.eye(3).to_sparse()
    assert uncounted_bytes(native.owns) - before == 4032 + 64
    del counted, views, sparse


# without a compiler


def test_without_a_compiler_the_peak_is_measured_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts()  # those of the process have their hook, whoever asks for them first
    monkeypatch.setattr("tightrope.run.ledger.accounts.missing", lambda _: "no C++ compiler found.")
    monkeypatch.setattr("tightrope.run.ledger.accounts.compiler", lambda: None)
    monkeypatch.setattr("tightrope.run.ledger.accounts.warn_once", lambda _: None)
    unhooked = Accounts()
    monkeypatch.setattr("tightrope.run.session.replay.accounts", lambda: unhooked)
    guard = replay("1GiB")
    assert (guard.enforced, guard.note) == (False, "checked, not enforced: no C++ compiler")
    gc.collect()
    before = uncounted_bytes(None)
    for _ in range(5):
        with guard:
            sized(2**20, 2**21)
    assert guard.steps == 5
    assert 0 <= guard.live_peak - before - 3 * 2**20 <= 4096
    small = replay(before + 2**20, external=0)
    with pytest.raises(InfeasibleError, match="checked, not enforced"), small:
        sized(2**21)
