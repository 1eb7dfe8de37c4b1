"""Sparse updates: the bits of the whole step, a judge of them, a choice that meets brute force."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from test_micro_host import check_bytes

from benchmarks.micro.adamw import with_adamw
from benchmarks.micro.nets import NETS, Made
from benchmarks.micro.trained import samples, train
from tightrope.core import Graph, InfeasibleError, JudgeError, Machine, TightropeError
from tightrope_micro import capture_step, compile_step, run_on_host
from tightrope_micro.choose import choose_updates, gains_of, sparse_step
from tightrope_micro.host import c_compiler
from tightrope_micro.judge.sparse import check_sparse
from tightrope_micro.paging.economy import Economy
from tightrope_micro.sparse import updates_of, with_updates_of

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
KEPT = {
    "normed": ("blocks.1.second.weight", "fc.bias"),
    "dense": ("second.weight", "first.bias"),
    "sentences": ("blocks.1.down.weight", "fc.weight"),
}


def of_some(make: Callable[[], Made], names: tuple[str, ...]) -> Callable[[], Made]:
    """The net with its optimizer on the named parameters alone."""

    def made() -> Made:
        model, args, rule = make()
        group = {key: value for key, value in rule.param_groups[0].items() if key != "params"}
        kept = [one for name, one in model.named_parameters() if name in names]
        return model, args, type(rule)([{**group, "params": kept}], lr=group["lr"])

    return made


@pytest.mark.few(1)
@needs_cc
@pytest.mark.parametrize("make", [NETS["dense"], with_adamw(NETS["dense"], eps=1e-3)], ids=["sgd", "adamw"])
def test_kept_parameters_are_as_in_pytorch_and_others_stay(
    make: Callable[[], Made], board: Machine, tmp_path: Path
) -> None:
    names = KEPT["dense"]
    _, state, batches = train(of_some(make, names), 4)
    compiled = compile_step(sparse_step(capture_step(*make()), names), board, ram=9_000)
    run = run_on_host(compiled.write(tmp_path / "out"), samples(compiled, batches))
    check_bytes(compiled, run, board)
    first = dict(make()[0].named_parameters())
    for one in {one.name for one in compiled.manifest.held if one.kind != "input"} - {"adamw.step"}:
        found = np.frombuffer(run.values[one], np.float32)
        np.testing.assert_allclose(found, state[one], rtol=0, atol=1e-6)
        if one in first and one not in names:
            assert found.tobytes() == first[one].detach().numpy().tobytes()
        assert one in first or one.rpartition(".")[0] in names, "state of what is not updated is not held"


@needs_cc
def test_one_step_has_the_bits_of_the_whole_one(board: Machine, tmp_path: Path) -> None:
    step = capture_step(*NETS["normed"]())
    _, _, batches = train(NETS["normed"], 1)
    found = []
    for one in (step, sparse_step(step, KEPT["normed"])):
        compiled = compile_step(one, board, ram=60_000, economy=Economy(reruns=False, walks=20))
        run = run_on_host(compiled.write(tmp_path / str(len(found))), samples(compiled, batches))
        found.append((run, compiled.manifest))
    (whole, everything), (some, less) = found
    assert some.losses == whole.losses
    for name in (*KEPT["normed"], "blocks.0.norm.running_mean", "blocks.1.norm.running_var"):
        assert some.values[name] == whole.values[name]
    assert less.pages.bytes_out < everything.pages.bytes_out
    assert less.seconds < everything.seconds


@pytest.fixture(scope="module")
def whole() -> Graph:
    return capture_step(*NETS["normed"]()).graph


def _without(graph: Graph, at: int) -> Graph:
    return replace(graph, ops=(*graph.ops[:at], *graph.ops[at + 1 :]))


def test_the_judge_passes_every_single_update_and_all(whole: Graph) -> None:
    for names in ((one,) for one in updates_of(whole)):
        check_sparse(whole, with_updates_of(whole, names), names)
    check_sparse(whole, with_updates_of(whole, tuple(updates_of(whole))), tuple(updates_of(whole)))


def test_the_judge_refuses_every_op_left_out(whole: Graph) -> None:
    names = KEPT["normed"]
    sparse = with_updates_of(whole, names)
    for at in range(len(sparse.ops)):
        with pytest.raises(JudgeError):
            check_sparse(whole, _without(sparse, at), names)


def test_the_judge_refuses_other_arguments_orders_and_choices(whole: Graph) -> None:
    names = KEPT["normed"]
    sparse = with_updates_of(whole, names)
    last = sparse.ops[-1]
    swapped = (*sparse.ops[:-2], sparse.ops[-1], sparse.ops[-2])
    faster = replace(last, arguments=(*last.arguments[:-5], 0.5, *last.arguments[-4:]))
    for wrong, asked in (
        (replace(sparse, ops=swapped), names),
        (replace(sparse, ops=(*sparse.ops[:-1], faster)), names),
        (sparse, names[:1]),
        (sparse, (*names, "stem.weight")),
        (sparse, (*names, "nothing")),
        (with_updates_of(whole, (*names, "stem.bias")), names),
    ):
        with pytest.raises(JudgeError):
            check_sparse(whole, wrong, asked)


def test_the_choice_is_that_of_brute_force(board: Machine) -> None:
    model, args, rule = NETS["dense"]()
    step, gains = capture_step(model, args, rule), gains_of(model, [args])
    assert set(gains) == set(updates_of(step.graph))
    seconds = {}
    for names in (s for count in range(1, 5) for s in combinations(gains, count)):
        once = compile_step(
            sparse_step(step, names), board, ram=40_000, economy=Economy(reruns=False, walks=20)
        )
        seconds[names] = once.manifest.seconds
    low, high, seen = min(seconds.values()), max(seconds.values()), set()
    for share in (0.1, 0.6):
        economy = Economy(seconds=low + share * (high - low), reruns=False, walks=20)
        found = choose_updates(step, board, gains, ram=40_000, economy=economy)
        fits = [names for names, taken in seconds.items() if taken <= economy.seconds]
        best = max(sum(gains[name] for name in names) for names in fits)
        assert found.closed
        assert sum(gains[name] for name in found.names) == pytest.approx(best, rel=1e-12)
        assert found.compiled.manifest.seconds <= economy.seconds
        seen.add(found.names)
    assert len(seen) == 2


def test_what_cannot_be_chosen_is_refused(board: Machine) -> None:
    model, args, rule = NETS["dense"]()
    step = capture_step(model, args, rule)
    with pytest.raises(
        TightropeError, match=r"no parameter 'third' is updated in the step; there are .*first.weight"
    ):
        sparse_step(step, ["third"])
    with pytest.raises(TightropeError, match="gains are at least 0"):
        choose_updates(step, board, {"first.weight": -1.0}, ram=9_000)
    with pytest.raises(InfeasibleError, match="next limit to try"):
        choose_updates(step, board, gains_of(model, [args]), ram=2_500)
    assert gains_of(model, [(torch.zeros_like(args[0]), args[1])])["first.weight"] == 0.0
