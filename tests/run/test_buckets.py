"""Shapes that change: one capture, a plan per bucket, the bits of eager."""

import copy
import gc
import re
import warnings
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from training import trains_as, turned

import tightrope
from tightrope.core.codec import dump_graph, load_graph
from tightrope.plan.job import Job
from tightrope.run.base.shapes import check_shapes, rounded
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.session.unit import LENT


class Tower(nn.Module):
    """Rows of any number and length through a few wide layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        wide = [layer for _ in range(2) for layer in (nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.1))]
        self.embed, self.wide, self.head = nn.Embedding(40, 24), nn.Sequential(*wide), nn.Linear(24, 40)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.wide(self.embed(tokens))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def batch(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1000 * rows + length)
    first, second = (torch.randint(0, 40, (rows, length), generator=made) for _ in range(2))
    return first, second


def bits(model: nn.Module, *inputs: torch.Tensor) -> list[bytes]:
    """Loss and gradients of a step that begins from the same random state; nothing of it stays."""
    torch.manual_seed(3)
    loss = model(*inputs)
    loss.backward()
    found = [loss.detach().numpy().tobytes()]
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad.numpy().tobytes())
    model.zero_grad()
    return found


def eager(model: nn.Module, *inputs: torch.Tensor) -> list[bytes]:
    with accounts().unlimited():
        return bits(model, *inputs)


LENGTHS = (40, 33, 64, 50, 47, 40)


@pytest.fixture
def pair() -> tuple[Tower, Tower]:
    torch.manual_seed(0)
    gc.collect()
    model = Tower()
    return model, copy.deepcopy(model)


def test_one_capture_and_a_plan_per_bucket_give_the_bits_of_eager(pair: tuple[Tower, Tower]) -> None:
    model, plain = pair
    tightrope.compile(model, budget=accounts().charged() + 2**24, shapes="bucket", progress=False)
    for length in LENGTHS:
        assert bits(model, *batch(4, length)) == eager(plain, *batch(4, length)), length
    report = tightrope.report(model)
    assert compiled_of(model).num_graphs == 1
    assert [(one.largest.split(",")[0], one.num_shapes, one.num_calls) for one in report.buckets] == [
        ("input 0 [4 x 48]", 3, 4),
        ("input 0 [4 x 64]", 2, 2),
    ]
    assert sum(proof.cause != LENT for proof in report.proofs) == 2
    assert sum(proof.cause == LENT for proof in report.proofs) == 4
    assert report.bucket.startswith("input 0 [4 x 40], input 1 [4 x 40] ran by the plan of the bucket up to")
    assert report.bucket in str(report)
    assert "planned 2 times" in str(report)
    assert (report.divergences, report.forecast_peak) == (0, report.observed_peak)


@pytest.mark.slow
def test_smaller_calls_run_in_the_arena_of_the_largest(pair: tuple[Tower, Tower]) -> None:
    """The budget makes the largest shape compute again; what fits without runs without."""
    model, plain = pair
    gc.collect()
    held = accounts().charged()
    probe = copy.deepcopy(model)
    tightrope.compile(probe, budget=held + 2**30, progress=False)
    bits(probe, *batch(4, 64))
    whole = tightrope.report(probe)
    del probe
    gc.collect()
    budget = accounts().charged() + whole.persistent - held + whole.arena - whole.arena // 5
    tightrope.compile(model, budget=budget, shapes=[(4, 64)], progress=False)
    arenas = []
    for length in (64, 63, 60, 20):
        assert bits(model, *batch(4, length)) == eager(plain, *batch(4, length)), length
        report = tightrope.report(model)
        arenas.append(report.arena)
        assert report.observed_total <= budget
        assert (report.num_recomputed > 0) == (length > 50), length
    assert arenas == sorted(arenas, reverse=True)
    assert sum(proof.cause != LENT for proof in report.proofs) == 1


def test_a_larger_shape_is_refused_with_a_price_that_holds(pair: tuple[Tower, Tower]) -> None:
    model, plain = pair
    budget = accounts().charged() + 300_000
    tightrope.compile(model, budget=budget, shapes=[(4, 16)], progress=False)
    bits(model, *batch(4, 16))
    with pytest.raises(
        tightrope.ShapeError, match=r"input 0 \[64 x 96\].*larger than every declared.*\(4, 16\)"
    ) as said:
        model(*batch(64, 96))
    price = said.value.smallest_found
    assert price is not None
    assert price > budget
    assert f"budget={price}" in str(said.value)
    assert bits(model, *batch(4, 16)) == eager(plain, *batch(4, 16))
    with pytest.raises(tightrope.ShapeError):
        model(*batch(5, 16))


def test_a_declared_shape_that_does_not_fit_is_refused_in_the_first_call(pair: tuple[Tower, Tower]) -> None:
    model, _ = pair
    budget = accounts().charged() + 300_000
    tightrope.compile(model, budget=budget, shapes=[(4, 8), (4, 512)], progress=False)
    with pytest.raises(tightrope.InfeasibleError, match="asked"):
        model(*batch(4, 8))


@pytest.mark.slow
def test_a_bucket_by_rule_that_does_not_fit_shrinks_to_the_call(pair: tuple[Tower, Tower]) -> None:
    model, plain = pair
    probe = copy.deepcopy(model)
    with pytest.raises(tightrope.InfeasibleError) as least:
        tightrope.compile(probe, budget=accounts().charged() + 1000, progress=False)(*batch(64, 100))
    budget = least.value.smallest_found
    del probe, least  # frames of the refusal hold its inputs
    gc.collect()
    assert budget is not None
    tightrope.compile(model, budget=budget, shapes="bucket", progress=False)
    assert bits(model, *batch(64, 100)) == eager(plain, *batch(64, 100))
    report = tightrope.report(model)
    assert "was planned by itself: the largest sizes of its bucket do not fit" in report.bucket
    assert [one.num_alone for one in report.buckets] == [1]


def test_the_search_for_a_bucket_begins_from_the_nearest_one(
    pair: tuple[Tower, Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tightrope.run.session.unit as unit

    model, _ = pair
    began: list[int] = []
    solve = unit.solve

    def watched(graph: tightrope.Graph, **options: object) -> tightrope.Plan:
        start = options["start"]
        began.append(0 if start is None else len(start.offsets))  # type: ignore[attr-defined]
        return solve(graph, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(unit, "solve", watched)
    tightrope.compile(model, budget=accounts().charged() + 2**24, shapes="bucket", progress=False)
    bits(model, *batch(4, 40))
    bits(model, *batch(4, 60))
    assert [bool(size) for size in began] == [False, True]


def test_evaluation_has_buckets_too(pair: tuple[Tower, Tower]) -> None:
    model, plain = pair
    tightrope.compile(model, budget=accounts().charged() + 2**24, shapes="bucket", progress=False)
    model.eval()
    plain.eval()
    with torch.no_grad():
        for length in (40, 33):
            views = torch.stack(batch(4, length)).unbind()  # of one tensor
            assert torch.equal(model(*views), plain(*views))
    assert compiled_of(model).num_graphs == 1
    assert "bucket up to" in tightrope.report(model).bucket


@pytest.mark.parametrize(
    "shapes", ["buckets", [], [4], [(4, 0)], [(4, True)], [{}], [{1: (4, 8)}], 7, [("a", 2)]]
)
def test_shapes_that_are_none_are_refused(shapes: object) -> None:
    with pytest.raises(tightrope.TightropeError, match="shapes="):
        check_shapes(shapes, fuse=False)


def test_fused_loops_are_for_one_shape() -> None:
    with pytest.raises(tightrope.TightropeError, match="fuse=True do not go together"):
        tightrope.compile(nn.Linear(2, 2), budget=2**20, shapes="bucket", fuse=True)


def test_a_declared_shape_names_tensors_of_the_call() -> None:
    model = nn.Linear(8, 8)
    tightrope.compile(model, budget=accounts().charged() + 2**24, shapes=[{"pixels": (4, 8)}], progress=False)
    with pytest.raises(
        tightrope.TightropeError, match=r"names the tensor 'pixels'; the call has input 0 with 2"
    ):
        model(torch.ones(4, 8))


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_declared_shape_names_a_parameter_of_the_forward(by_keyword: bool) -> None:
    model = nn.Linear(8, 8)
    tightrope.compile(model, budget=accounts().charged() + 2**24, shapes=[{"input": (4, 8)}], progress=False)
    for rows in (4, 3):
        given = torch.ones(rows, 8)
        result = model(input=given) if by_keyword else model(given)
        result.sum().backward()
    assert "2 calls of 2 shapes" in str(tightrope.report(model).buckets[0])
    with pytest.raises(tightrope.ShapeError, match=r"larger than every declared"):
        model(input=torch.ones(5, 8)) if by_keyword else model(torch.ones(5, 8))


def test_rounding_wastes_at_most_half() -> None:
    assert all(size <= rounded(size) <= max(1.5 * size, size + 1) for size in range(1, 3000))
    assert len({rounded(size) for size in range(33, 257)}) == 6


class Two(nn.Module):
    """Returns what its loss reads, and what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(rows).relu()
        return self.second(hidden), hidden.sin()


def test_a_loss_outside_may_leave_outputs_unread_in_every_shape() -> None:
    torch.manual_seed(0)
    model = Two()
    budget = accounts().charged() + 2**22
    tightrope.compile(model, budget=budget, shapes="bucket", verify="eager", progress=False)
    for rows in (40, 33, 40):
        model.zero_grad()
        model(torch.randn(rows, 8))[0].square().mean().backward()
    report = tightrope.report(model)
    assert "equal" in report.verified
    assert report.unread == ("float32[40x16]",)
    assert compiled_of(model).num_graphs == 1


class Broken(nn.Module):
    """Asks for a value in mid-call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.first(rows)
        return self.second(hidden * 2) if hidden.sum().item() > 1e9 else self.second(hidden)


def test_a_model_in_pieces_says_that_shapes_have_no_effect() -> None:
    model = Broken()
    budget = accounts().charged() + 2**22
    tightrope.compile(model, budget=budget, shapes="bucket", fallback="pieces", progress=False)
    shapes, pieces = (pytest.warns(UserWarning, match=said) for said in ("shapes= has no", "L1 in pieces"))
    with shapes, pieces:
        model(torch.randn(6, 8)).sum().backward()
    report = tightrope.report(model)
    assert "shapes= has no effect" in report.bucket
    assert "sequence of graphs" in report.why


def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the planners that will search; the order as given is only priced."""
    names: list[str] = []
    run = Job.run

    def noted(job: Job, planner: str) -> None:
        if planner != "given":
            names.append(planner)
        run(job, planner)

    monkeypatch.setattr(Job, "run", noted)
    return names


@pytest.mark.slow
def test_plans_of_buckets_are_kept_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_PLANS", str(tmp_path))
    searches = searched(monkeypatch)
    for _ in range(2):
        torch.manual_seed(0)
        gc.collect()
        model = Tower()
        tightrope.compile(model, budget=accounts().charged() + 2**20, shapes=[(4, 24)], progress=False)
        searches.clear()
        bits(model, *batch(4, 20))
        del model
    assert not searches


@pytest.mark.slow
def test_a_later_process_captures_its_first_shape_alone(
    pair: tuple[Tower, Tower], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second shape is captured for all; what was kept stays in use, and nothing is searched for."""
    monkeypatch.setenv("TIGHTROPE_PLANS", str(tmp_path))
    _, plain = pair
    searches = searched(monkeypatch)
    for lengths, captures in (((20,), (1,)), ((22, 40, 22, 24), (1, 2, 2, 2))):
        searches.clear()
        gc.collect()
        model = copy.deepcopy(plain)
        budget = accounts().charged() + 2**20
        tightrope.compile(model, budget=budget, shapes=[(4, 24), (4, 48)], progress=False)
        for length, num in zip(lengths, captures, strict=True):
            assert bits(model, *batch(4, length)) == eager(plain, *batch(4, length)), length
            assert compiled_of(model).num_graphs == num
    assert not searches
    report = tightrope.report(model)
    assert sum(proof.cause != LENT for proof in report.proofs) == 2
    assert report.observed_total <= budget
    used = [(one.largest.split(",")[0], one.num_shapes, one.num_calls) for one in report.buckets]
    assert used == [("input 0 [4 x 48]", 1, 1), ("input 0 [4 x 24]", 2, 3)]
    assert [one.num_alone for one in report.buckets] == [0, 0]
    model.eval()
    plain.eval()
    with torch.no_grad():  # of the first shape, but another graph
        assert torch.equal(model(*batch(4, 22)), plain(*batch(4, 22)))


class Branches(nn.Module):
    """Another product from 16 rows on."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.few(rows) if rows.shape[0] < 16 else self.many(rows)).sin().sum()


def test_declared_shapes_hold_for_calls_that_are_another_graph() -> None:
    """Torch fixes a size of one, and a branch makes two graphs: what was declared is admitted in all."""
    torch.manual_seed(0)
    model = Branches()
    plain = copy.deepcopy(model)
    tightrope.compile(model, budget=accounts().charged() + 2**22, shapes=[(20, 4)], progress=False)
    for rows in (18, 1, 7, 20):
        given = torch.randn(rows, 4)
        with accounts().unlimited():
            wanted = plain(given)
        assert torch.equal(model(given), wanted), rows
    for rows in (21, 21):
        with pytest.raises(tightrope.ShapeError, match="larger than every declared"):
            model(torch.randn(rows, 4))
    assert compiled_of(model).num_graphs == 3


class Masked(nn.Module):
    """Reads its second tensor first."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ((~mask).unsqueeze(-1) * self.only(rows)).square().mean()


@pytest.mark.parametrize("shapes", [[(10**19, 8)], [(2**40, 2**40)]])
def test_a_shape_that_no_machine_holds_is_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(tightrope.TightropeError, match="at most 281474976710656 elements"):
        tightrope.compile(nn.Linear(8, 8), budget="64MiB", shapes=shapes)


@pytest.mark.parametrize("shapes", [[("rows", 2)], [(4, 8), (4, 0)], [{"rows": (True,)}], [()], ["48"]])
def test_a_list_with_something_else_than_shapes_is_quoted_whole(shapes: list[object]) -> None:
    with pytest.raises(tightrope.TightropeError, match=re.escape(f'shapes={shapes!r}: give "bucket", or')):
        tightrope.compile(nn.Linear(8, 8), budget="64MiB", shapes=shapes)


def test_one_shape_outside_of_a_list_is_quoted_whole() -> None:
    with pytest.raises(tightrope.TightropeError, match=r"shapes=\(8, 16\): give"):
        tightrope.compile(nn.Linear(8, 8), budget="64MiB", shapes=(8, 16))


class Fives(nn.Module):
    """Rows by fives: the largest of a bucket by rule is no multiple of five."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.only(rows).view(5, -1)


def test_a_bucket_by_rule_that_has_no_largest_is_said_once() -> None:
    model = tightrope.compile(Fives(), budget="64MiB", shapes="bucket", progress=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for rows in (5, 10, 15, 20):
            model(torch.ones(rows, 8)).square().mean().backward()
    texts = [str(one.message) for one in said if "planned by itself" in str(one.message)]
    assert len(texts) == 1
    assert "[12 x 8] would be the largest of its bucket" in texts[0]


@pytest.mark.slow
def test_a_shape_without_a_name_is_that_of_the_first_tensor_of_the_call() -> None:
    model = Masked()
    tightrope.compile(model, budget=accounts().charged() + 2**22, shapes=[(4, 8, 4)], progress=False)
    model(torch.ones(3, 5, 4), torch.ones(3, 5) > 0).backward()
    assert tightrope.report(model).buckets[0].largest.startswith("input 0 [4 x 8 x 4]")
    other = Masked()
    tightrope.compile(other, budget=accounts().charged() + 2**22, shapes=[(4, 8)], progress=False)
    with pytest.raises(tightrope.TightropeError, match=r"names 2 sizes for 'input 0'; the call has"):
        other(torch.ones(3, 5, 4), torch.ones(3, 5) > 0)


def _as_it_was(data: bytes) -> bytes:
    return data


def _cut(data: bytes) -> bytes:
    return data[:-9]


def _enlarged(data: bytes) -> bytes:
    graph = load_graph(data)
    first, *others = graph.ops
    return dump_graph(
        msgspec.structs.replace(graph, ops=(msgspec.structs.replace(first, hidden=2**40), *others))
    )


def _elsewhere(data: bytes) -> bytes:
    return dump_graph(msgspec.structs.replace(load_graph(data), environment=(("device", "another"),)))


@pytest.mark.slow
def test_what_was_kept_of_shapes_and_is_wrong_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are damaged, of another graph, or of one that does not fit: symbols say what is right."""
    monkeypatch.setenv("TIGHTROPE_PLANS", str(tmp_path))
    torch.manual_seed(0)
    plain, given = Masked(), (torch.ones(3, 5, 4), torch.ones(3, 5) > 0)
    plain(*given).backward()
    spoiled = ((_as_it_was, True), (_cut, False), (_enlarged, False), (_elsewhere, False))
    for spoil, alone in ((_as_it_was, False), *spoiled):
        for file in tmp_path.glob("shapes-*/*/*/4-8.json"):
            file.write_bytes(spoil(file.read_bytes()))
        gc.collect()
        model = Masked()
        model.load_state_dict(plain.state_dict())
        shapes = [{"input 0": (4, 8, 4)}]
        tightrope.compile(model, budget=accounts().charged() + 2**22, shapes=shapes, progress=False)
        model(*given).backward()
        assert all(
            torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
            for one, other in zip(model.parameters(), plain.parameters(), strict=True)
        )
        assert "ran by the plan of the bucket up to" in tightrope.report(model).bucket
        last = compiled_of(model).buckets.last
        assert last is not None
        assert (last[0].only is not None) == alone, spoil


class Turned(nn.Module):
    """Torch's shape functions take the result of an op for contiguous, which it is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return turned(self.first(rows)).flatten(0, 1).square().mean()


@pytest.mark.filterwarnings("ignore:tightrope. level L0")
def test_a_view_that_no_layout_allows_trains_as_in_eager_for_other_sizes() -> None:
    torch.manual_seed(0)
    plain = Turned()
    model = copy.deepcopy(plain)
    tightrope.compile(model, budget=accounts().charged() + 2**22, shapes="bucket", progress=False)
    for one in (model, plain):
        one(torch.zeros(4, 20, 8)).backward()
    for size in (20, 30):
        trains_as(plain, model, torch.randn(3, size, 8))


def test_a_call_whose_rounded_sizes_are_another_graph_says_so() -> None:
    model = Branches()
    tightrope.compile(model, budget=accounts().charged() + 2**22, shapes="bucket", progress=False)
    with pytest.warns(UserWarning, match="is planned by itself"):
        model(torch.randn(13, 4)).backward()
    assert "was planned by itself" in tightrope.report(model).bucket
    assert "would be the largest of its bucket, but" in tightrope.report(model).bucket
