"""Any model with a list of layers, told from shapes: bytes as the allocator counts, the best of all cuts."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.cuts import equal_cuts, largest_part, least_cuts
from tightrope_ranks.pipeline.estimate import estimate_ranks
from tightrope_ranks.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline, staged
from tightrope_ranks.pipeline.segments import list_of_layers, segment_costs
from tightrope_ranks.values.ranks import StageCost

ROWS, LENGTH, WIDTH, VOCABULARY = 2, 32, 64, 256
HIDDEN = ROWS * LENGTH * WIDTH * 4
CLUSTER = Machine(
    "cluster",
    (Tier("hbm", 2**30, read=1e12),),
    {"matmul": 1e12},
    devices=8,
    links=(DeviceLink("link", 1e-6, 1e10),),
)
QUICK = PipelineOptions(ascending=True, split=False, again=False, seconds=0.0)


def gpt2() -> Any:
    config = GPT2Config(
        n_layer=4, n_embd=WIDTH, n_head=4, n_positions=LENGTH, vocab_size=VOCABULARY,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> Any:
    config = LlamaConfig(
        num_hidden_layers=4, hidden_size=WIDTH, intermediate_size=96, num_attention_heads=4,
        vocab_size=VOCABULARY, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def ids() -> dict[str, torch.Tensor]:
    given = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    return {"input_ids": given, "labels": given}


@pytest.mark.parametrize(("make", "mask"), [(gpt2, 0), (llama, ROWS * LENGTH * LENGTH * 4)])
def test_layers_keep_what_the_allocator_counts(make: Callable[[], Any], mask: int) -> None:
    """The mask of Llama's attention is made only where transformers sees tensors without values.

    Autograd does not show the numbers that it keeps, 64 bytes each.
    """
    model, hook, seen = make(), allocator(), []
    for layer in list_of_layers(model)[1]:
        layer.register_forward_pre_hook(lambda *_: seen.append(hook.stats().heap_live))
    output = model(**ids())
    del output
    told = segment_costs(make(), (), ids(), machine=CLUSTER)
    kept = [one.saved + HIDDEN - mask for one in told.costs[1:-2]]
    off = [after - before - one for (before, after), one in zip(itertools.pairwise(seen), kept, strict=True)]
    assert all(0 <= one <= 4 * 64 for one in off)
    assert all(HIDDEN <= one.output <= 1.5 * HIDDEN for one in told.costs[:-2])
    assert sum(one.parameters for one in told.costs) == sum(4 * p.numel() for p in model.parameters()) + sum(
        4 * model.get_parameter(name).numel() for name in told.shared
    )


def test_a_model_on_meta_is_told_as_one_with_values() -> None:
    with torch.device("meta"):
        empty, given = gpt2(), ids_on_meta()
    assert segment_costs(empty, (), given, machine=CLUSTER) == segment_costs(
        gpt2(), (), ids(), machine=CLUSTER
    )


def ids_on_meta() -> dict[str, torch.Tensor]:
    given = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    return {"input_ids": given, "labels": given}


def test_a_model_of_transformers_is_laid_out_and_judged() -> None:
    found = estimate_ranks(
        gpt2(), (), ids(), ranks=4, pipeline=2, machine=CLUSTER, optimizer_states=2.0, options=QUICK
    )
    assert found.names[:2] == ("before the layers", "transformer.h.0")
    assert found.shared == ("transformer.wte.weight",)
    covered = sorted(some for one in found.takes for some in one.layers)
    assert [a for a, _ in covered] + [6] == [0] + [b for _, b in covered]
    verdict = judge_ranks(found.plan)
    assert (verdict.ns, verdict.peaks) == (found.plan.ns, tuple(one.peak for one in found.takes))


def test_cuts_are_the_best_of_all_cuts() -> None:
    draw = random.Random(5)
    for _ in range(200):
        count = draw.randint(1, 9)
        weights = [draw.choice((0, 1, 2, 5, 40)) for _ in range(count)]
        num = draw.randint(1, count)
        best = min(
            largest_part(weights, (0, *inner, count))
            for inner in itertools.combinations(range(1, count), num - 1)
        )
        cuts = least_cuts(weights, num)
        assert largest_part(weights, cuts) == best
        assert (cuts[0], cuts[-1], len(cuts)) == (0, count, num + 1)
        assert all(a < b for a, b in itertools.pairwise(cuts))
        if largest_part(weights, equal_cuts(count, num)) == best:
            assert cuts == equal_cuts(count, num)


def test_balanced_cuts_are_never_slower_and_can_be_switched_off() -> None:
    times = (900, 100, 100, 100, 100, 700)
    layers = tuple(
        StageCost(ns, ns, ns, input=64 * (k > 0), output=64 * (k < 5)) for k, ns in enumerate(times)
    )
    alone = PipelineOptions((1,), fold=False, again=False, shipped=False, seconds=0.0)
    equal, balanced = (
        plan_pipeline(PipelineTask(layers, CLUSTER, 3, 6, balance=on), alone) for on in (False, True)
    )
    assert balanced.ns < equal.ns
    assert equal.work == staged(PipelineTask(layers, CLUSTER, 3, 6), (0, 1, 2))
    assert judge_ranks(balanced).ns == balanced.ns


class Odd(torch.nn.Module):
    """Layers that are not called once each, in order; or a forward that needs a value."""

    def __init__(self, order: tuple[int, ...], *, branch: bool = False) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.order, self.branch = order, branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.branch and x.sum() > 0:
            x = x + 1
        for number in self.order:
            x = self.blocks[number](x)
        return x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (torch.nn.Linear(8, 8), "class Linear is no sequence of layers"),
        (Odd((0, 2, 1)), "layer 2 of 'blocks' runs where layer 1 is due"),
        (Odd((0, 0, 1)), "layer 0 of 'blocks' runs where layer 1 is due"),
        (Odd((0, 1)), "layer 2 of 'blocks' does not run: take it out"),
        (Odd((0, 1, 2), branch=True), "fails on shapes alone: .* Let it not branch on values"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(model: torch.nn.Module, message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        estimate_ranks(model, torch.ones(2, 8), ranks=2, machine=CLUSTER, options=QUICK)


def test_a_forward_without_values_leaves_no_hook_behind() -> None:
    model = Odd((0, 1, 2))
    segment_costs(model, (torch.ones(2, 8),), machine=CLUSTER)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.blocks)
