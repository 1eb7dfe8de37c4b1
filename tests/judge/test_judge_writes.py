"""Results that are written over inputs: the judge accepts what lowering makes, and refuses every damage."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from tests.oracles import WRITING, whole_view, writing_graph
from tightrope.core import (
    Executable,
    Flag,
    Graph,
    Items,
    JudgeError,
    Op,
    Part,
    Result,
    Run,
    Storage,
    View,
)
from tightrope.core.executable import CALLER
from tightrope.core.graph import RETURN
from tightrope.judge import walk_executable
from tightrope.lower import lower, with_writes
from tightrope.lower.writes import FORMS
from tightrope.plan import base_schedule

SEEDS = range(60)
Mutant = tuple[Graph, Executable]
Mutator = Callable[[random.Random, Graph, Executable, int], Mutant | None]


def run_at(executable: Executable, position: int) -> Run:
    found = executable.instructions[position]
    assert isinstance(found, Run)
    return found


def changed(executable: Executable, position: int, run: Run) -> Executable:
    rest = list(executable.instructions)
    rest[position] = run
    return replace(executable, instructions=tuple(rest))


def writes(graph: Graph, executable: Executable) -> list[int]:
    """Positions of the runs that write over an input."""
    return [
        k
        for k, run in enumerate(executable.instructions)
        if isinstance(run, Run) and run.target != graph.op(run.op).target
    ]


def told(run: Run, where: View) -> Run:
    """Move the result, and the keyword that says where it goes."""
    keywords = tuple((name, where) for name, _ in run.keywords)
    return replace(run, keywords=keywords, results=(Result(-1, where),))


def another_input(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    run = run_at(made, at)
    others = [v for v in run.arguments if isinstance(v, View) and v.base != run.results[0].view.base]
    return (graph, changed(made, at, told(run, rng.choice(others)))) if others else None


def another_buffer(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    run = run_at(made, at)
    base = run.results[0].view.base + rng.choice((-1, 1, 2))
    return graph, changed(made, at, told(run, replace(run.results[0].view, base=base)))


def wrong_layout(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    run = run_at(made, at)
    where = run.results[0].view
    odd = rng.choice(
        (
            replace(where, shape=(8, 4), strides=(4, 1)), replace(where, strides=(1, 4)),
            replace(where, offset=1), replace(where, dtype="int32"), replace(where, bits="neg"),
        )
    )  # fmt: skip
    return graph, changed(made, at, told(run, odd))


def seen_transposed(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    """The op itself reads what it overwrites in another layout."""
    run = run_at(made, at)
    op = graph.op(run.op)
    odd = {"shape": (8, 4), "strides": (1, 8)}
    arguments = tuple(
        replace(v, **odd) if isinstance(v, View) and v.base == op.over else v for v in op.arguments
    )
    mine = tuple(
        replace(v, **odd) if isinstance(v, View) and v.base == run.results[0].view.base else v
        for v in run.arguments
    )
    return with_op(graph, replace(op, arguments=arguments)), changed(made, at, replace(run, arguments=mine))


def with_op(graph: Graph, op: Op) -> Graph:
    return replace(graph, ops=tuple(op if one.id == op.id else one for one in graph.ops))


def with_storage(graph: Graph, number: int, **facts: bool) -> Graph:
    return replace(
        graph, storages=tuple(replace(s, **facts) if s.id == number else s for s in graph.storages)
    )


def other_form(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    run = run_at(made, at)
    targets = [form.target for form in FORMS.values() if form.target != run.target]
    return graph, changed(made, at, replace(run, target=rng.choice(targets)))


def other_keyword(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    run = run_at(made, at)
    keywords = (("result", run.results[0].view),) if run.keywords else (("out", run.results[0].view),)
    return graph, changed(made, at, replace(run, keywords=keywords))


def not_named(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    """The graph does not say that the op may write."""
    return with_op(graph, replace(graph.op(run_at(made, at).op), over=-1)), made


def random_op(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    flag = rng.choice((Flag.RANDOM, Flag.IN_PLACE, Flag.OPAQUE))
    return with_op(graph, replace(graph.op(run_at(made, at).op), flags=flag)), made


def stays_to_the_end(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    return with_storage(graph, graph.op(run_at(made, at).op).over, resident_at_end=True), made


def handed_out(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    return with_storage(graph, graph.op(run_at(made, at).op).over, outside=True), made


def changed_in_place(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    op = graph.op(run_at(made, at).op)
    maker = next(one for one in graph.ops if op.over in one.creates)
    return with_op(graph, replace(maker, mutates=(op.over,))), made


def later_reader(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    """A later op reads the old value, from the buffer that held it."""
    over, buffer = graph.op(run_at(made, at).op).over, run_at(made, at).results[0].view.base
    later = [k for k in range(at + 1, len(made.instructions)) if isinstance(made.instructions[k], Run)]
    if not later:
        return None
    position = rng.choice(later)
    run = run_at(made, position)
    op, slot = graph.op(run.op), rng.randrange(len(run.arguments))
    arguments = (*op.arguments[:slot], whole_view(over), *op.arguments[slot + 1 :])
    mine = (*run.arguments[:slot], whole_view(buffer), *run.arguments[slot + 1 :])
    reads = tuple(sorted({v.base for v in arguments if isinstance(v, View)}))
    graph = with_op(graph, replace(op, arguments=arguments, reads=reads))
    return graph, changed(made, position, replace(run, arguments=mine))


def still_allocates(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    run = run_at(made, at)
    some = [i.inside for i in made.instructions if isinstance(i, Run) and i.inside]
    return graph, changed(made, at, replace(run, inside=rng.choice(some))) if some else made


def no_write(rng: random.Random, graph: Graph, made: Executable, at: int) -> Mutant | None:
    """The plain op, without a place for its result."""
    run, op = run_at(made, at), graph.op(run_at(made, at).op)
    return graph, changed(made, at, replace(run, target=op.target, keywords=op.keywords))


MUTATORS: tuple[Mutator, ...] = (
    another_input, another_buffer, wrong_layout, seen_transposed, other_form, other_keyword, not_named,
    random_op, stays_to_the_end, handed_out, changed_in_place, later_reader, still_allocates, no_write,
)  # fmt: skip


def drawn_pairs() -> Iterator[tuple[int, Graph, Executable]]:
    for seed in SEEDS:
        graph = writing_graph(seed, parts=seed % 3 == 0)
        yield seed, graph, lower(graph, base_schedule(graph))


def test_what_lowering_writes_is_accepted_and_takes_fewer_bytes() -> None:
    saved = count = 0
    for _, graph, made in drawn_pairs():
        plain = replace(graph, ops=tuple(replace(op, over=-1) for op in graph.ops))
        peak = walk_executable(graph, made).peak
        before = walk_executable(plain, lower(plain, base_schedule(plain))).peak
        assert peak <= before
        saved += peak < before
        count += len(writes(graph, made))
    assert saved > 40
    assert count > 200


def test_every_mutated_write_is_refused() -> None:
    refused: Counter[str] = Counter()
    for seed, graph, made in drawn_pairs():
        rng = random.Random(seed)
        for at in writes(graph, made):
            for mutate in MUTATORS:
                mutant = mutate(rng, graph, made, at)
                if mutant is None:
                    continue
                with pytest.raises(JudgeError, match="executable, "):
                    walk_executable(*mutant)
                refused[mutate.__name__] += 1
    assert refused.total() >= 1_000
    assert set(refused) == {mutate.__name__ for mutate in MUTATORS}


def test_the_callers_memory_is_not_written_over() -> None:
    for _, graph, made in drawn_pairs():
        held = {i.buffer for i in made.instructions if getattr(i, "space", -1) == CALLER}
        assert not any(run_at(made, at).results[0].view.base in held for at in writes(graph, made))
        for op in graph.ops:
            if op.results and any(storage < 2 for storage in op.reads):
                over = next(storage for storage in op.reads if storage < 2)
                at = next(k for k, i in enumerate(made.instructions) if isinstance(i, Run) and i.op == op.id)
                where, form = replace(op.results[0].view, base=over), FORMS[op.target]
                told_where = ((form.keyword, where),) if form.keyword else ()
                run = replace(
                    run_at(made, at), target=form.target, keywords=told_where, inside=(),
                    results=(Result(-1, where),),
                )  # fmt: skip
                with pytest.raises(JudgeError, match="the caller"):
                    walk_executable(with_op(graph, replace(op, over=over)), changed(made, at, run))


def test_what_an_earlier_part_made_is_not_written_over() -> None:
    """A second backward through the same forward reads it again."""
    looks = [whole_view(storage) for storage in range(3)]
    relu = Op(0, "a", WRITING[0], (0,), (1,), arguments=(looks[0],), results=(Result(-1, looks[1]),))
    tanh = Op(2, "b", WRITING[1], (1,), (2,), arguments=(looks[1],), results=(Result(-1, looks[2]),))
    storages = (Storage(0, 128, external=True), Storage(1, 128), Storage(2, 128))
    graph = with_writes(Graph((relu, Op(1, "r", RETURN), tanh), storages, (), (Part(2), Part(3))))
    made = lower(graph, base_schedule(graph))
    assert writes(graph, made) == []
    at = next(k for k, i in enumerate(made.instructions) if isinstance(i, Run) and i.op == 2)
    over = made.instructions[at]
    assert isinstance(over, Run)
    where = over.arguments[0]
    assert isinstance(where, View)
    run = replace(
        over, target="aten.tanh.out", keywords=(("out", where),), inside=(), results=(Result(-1, where),)
    )
    with pytest.raises(JudgeError, match="an earlier part"):
        walk_executable(replace(graph, ops=(*graph.ops[:2], replace(tanh, over=1))), changed(made, at, run))


def norm_graph() -> Graph:
    """A backward of batch norm that may write its first result over what it reads."""
    row, looks = View(2, "float32", (8,), (1,)), {k: whole_view(k) for k in (0, 1, 3, 4, 5, 8)}
    relu = Op(0, "a", WRITING[0], (0,), (3,), arguments=(looks[0],), results=(Result(-1, looks[3]),))
    exp = Op(1, "b", WRITING[2], (1,), (4,), arguments=(looks[1],), results=(Result(-1, looks[4]),))
    made = (looks[5], replace(row, base=6), replace(row, base=7))
    norm = Op(
        2, "c", "tightrope.norm_backward", (2, 3, 4), (5, 6, 7),
        arguments=(looks[4], looks[3], None, None, None, row, row, True, 1e-5, Items((True, True, True))),
        results=tuple(Result(k, view) for k, view in enumerate(made)),
    )  # fmt: skip
    tanh = Op(3, "d", WRITING[1], (5,), (8,), arguments=(looks[5],), results=(Result(-1, looks[8]),))
    storages = [Storage(k, 128, external=k < 2) for k in range(9)]
    storages[2] = Storage(2, 32, external=True)
    storages[6:8] = [Storage(k, 32, resident_at_end=True) for k in (6, 7)]
    return with_writes(Graph((relu, exp, norm, tanh), tuple(storages)))


def test_the_first_of_several_results_is_written_and_the_others_allocated() -> None:
    graph = norm_graph()
    made = lower(graph, base_schedule(graph))
    at = next(k for k, i in enumerate(made.instructions) if isinstance(i, Run) and i.op == 2)
    run = run_at(made, at)
    assert (run.target, len(run.inside)) == ("tightrope.norm_backward.over", 2)
    plain = replace(graph, ops=tuple(replace(op, over=-1) for op in graph.ops))
    saved = (
        walk_executable(plain, lower(plain, base_schedule(plain))).peak - walk_executable(graph, made).peak
    )
    assert saved == 128
    whole = run_at(lower(plain, base_schedule(plain)), at).inside
    first, second, third = run.results
    wrong = (
        replace(run, inside=whole),
        replace(run, inside=run.inside[:1]),
        replace(run, inside=run.inside[::-1]),
        replace(run, results=(first, third, second)),
        replace(run, results=(Result(-1, first.view),)),
        replace(run, results=(replace(first, position=1), replace(second, position=0), third)),
        replace(run, results=(first, second)),
        replace(run, keywords=(("over", second.view),)),
        replace(run, keywords=()),
        replace(run, target="tightrope.norm_backward"),
        replace(run, target="aten.tanh.out"),
    )
    for mutant in wrong:
        with pytest.raises(JudgeError, match="executable, "):
            walk_executable(graph, changed(made, at, mutant))


def test_the_rows_of_a_batch_norm_are_not_written_over() -> None:
    graph = norm_graph()
    made = lower(graph, base_schedule(graph))
    norm = replace(graph.ops[2], over=2)
    at = next(k for k, i in enumerate(made.instructions) if isinstance(i, Run) and i.op == 2)
    with pytest.raises(JudgeError, match="executable, "):
        walk_executable(with_op(graph, norm), made)
    assert run_at(made, at).results[0].view.base >= 0
