"""Forwards and backwards in any order: several in the air, twice, never, interrupted."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Blocks, Seen, batches, budget_for, built, digest, play, same

import tightrope
from tightrope.core import TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope.run.compile import compiled_of

DATA = batches(8)


def compiled(*, share: float = 1.0, extra: int = 0) -> Any:
    model = built(Blocks)
    budget = budget_for(model, DATA[0][:1], share=share) + extra
    return tightrope.compile(model, budget=budget, progress=False)


def room_for_two() -> int:
    """Bytes that a second forward holds beside the first."""
    return 4 << 20


def test_two_forwards_before_one_backward() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            (x, y), (u, v) = DATA[2 * step : 2 * step + 2]
            one = functional.cross_entropy(model(x), y)
            two = functional.cross_entropy(model(u), v)
            see(one, two)
            (one + two).backward()
            see.gradients(model)
            optimizer.step()

    same(Blocks, loop, DATA[0][:1], extra=room_for_two())


@pytest.mark.slow
def test_two_forwards_under_a_budget_that_makes_the_second_plan_smaller() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        for step in range(2):
            model.zero_grad()
            (x, y), (u, v) = DATA[2 * step : 2 * step + 2]
            one = functional.cross_entropy(model(x), y)
            two = functional.cross_entropy(model(u), v)
            see(one, two)
            one.backward()
            see.gradients(model)
            two.backward()
            see.gradients(model)

    model = same(Blocks, loop, DATA[0][:1], extra=3 << 19)
    assert tightrope.report(model).num_recomputed > 0


@pytest.mark.slow
def test_a_graph_that_is_kept_can_be_run_backward_twice() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        for x, y in DATA[:3]:
            model.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)
            see.gradients(model)
            loss.backward()
            see.gradients(model)
            again = torch.autograd.grad(
                functional.cross_entropy(model(x), y), list(model.parameters()), retain_graph=True
            )
            see(*again)

    same(Blocks, loop, DATA[0][:1], extra=room_for_two())


def test_a_second_backward_without_a_kept_graph_is_refused() -> None:
    model = compiled()
    x, y = DATA[0]
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


@pytest.mark.slow
def test_a_forward_whose_backward_never_comes() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        for number, (x, y) in enumerate(DATA[:6]):
            model.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            see(loss)
            if number % 3 == 2:
                loss.backward()
                see.gradients(model)

    same(Blocks, loop, DATA[0][:1], extra=room_for_two())


@pytest.mark.slow
def test_dropped_outputs_give_everything_back() -> None:
    model = compiled(share=0.2)
    x, y = DATA[0]
    functional.cross_entropy(model(x), y).backward()
    model.zero_grad()
    gc.collect()
    before = allocator().stats().live
    for _ in range(3):
        out = model(x)
        del out
        assert allocator().stats().live == before


def test_an_exception_between_forward_and_backward() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for number, (x, y) in enumerate(DATA[:6]):
            optimizer.zero_grad()
            try:
                loss = functional.cross_entropy(model(x), y)
                if number % 2:
                    raise ValueError("a bad batch")
                loss.backward()
                see.gradients(model)
                optimizer.step()
            except ValueError:
                see("skipped")
            loss = None

    same(Blocks, loop, DATA[0][:1], share=0.3)


@pytest.mark.slow
def test_the_loop_variable_keeps_the_last_loss_and_a_list_keeps_outputs() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        outputs: list[Tensor] = []
        losses: list[Tensor] = []
        for x, y in DATA[:6]:
            out = model(x)
            loss = functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            outputs.append(out)
            losses.append(loss.detach())
        see(*outputs, *losses)

    same(Blocks, loop, DATA[0][:1], share=0.3, extra=256 * 1024)


@pytest.mark.slow
def test_gradients_for_inputs_by_autograd_grad() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        for x, y in DATA[:3]:
            x = x.clone().requires_grad_()
            loss = functional.cross_entropy(model(x), y)
            see(*torch.autograd.grad(loss, [x, *model.parameters()]))
            x = x.detach().requires_grad_()
            functional.cross_entropy(model(x), y).backward()
            see(x.grad)

    same(Blocks, loop, (DATA[0][0].clone().requires_grad_(),), share=0.3, extra=512 * 1024)


@pytest.mark.slow
def test_gradients_of_earlier_micro_batches_are_never_overwritten() -> None:
    model = compiled(share=0.2)
    kept: list[tuple[str, Tensor]] = []
    for x, y in DATA[:5]:
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        kept += [(digest(p.grad), p.grad) for p in model.parameters() if p.grad is not None]
    assert all(digest(tensor) == bits for bits, tensor in kept)


def test_a_parameter_that_changes_between_forward_and_backward_is_refused() -> None:
    model = compiled()
    x, y = DATA[0]
    loss = functional.cross_entropy(model(x), y)
    with torch.no_grad():
        model.layers[1][0].weight.mul_(2)
    with pytest.raises(TightropeError, match="changed in place between forward and backward"):
        loss.backward()
    del loss
    model.zero_grad()
    functional.cross_entropy(model(x), y).backward()


def test_an_output_that_changes_in_place_gives_the_gradients_of_eager() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        x, y = DATA[0]
        out = model(x)
        out.mul_(2.0).relu_()
        functional.cross_entropy(out, y).backward()
        see(out)
        see.gradients(model)

    same(Blocks, loop, DATA[0][:1])


def test_a_backward_in_another_thread() -> None:
    import threading

    def loop(model: nn.Module, see: Seen) -> None:
        for x, y in DATA[:2]:
            model.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            see.gradients(model)

    same(Blocks, loop, DATA[0][:1], share=0.3)


def test_the_limit_ends_with_the_last_model_and_arenas_are_given_back() -> None:
    native = allocator()
    gc.collect()
    before = native.stats().charged
    model: Any = compiled(share=0.3)
    x, y = DATA[0]
    functional.cross_entropy(model(x), y).backward()
    assert native.limit is not None
    assert native.stats().charged > before
    calls = weakref.ref(compiled_of(model).calls)
    del model
    gc.collect()
    gc.collect()
    assert calls() is None
    assert native.limit is None
    assert native.stats().charged <= before


def test_a_backward_after_its_model_is_gone() -> None:
    x, y = DATA[0]

    def gradients(model: nn.Module) -> list[str]:
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        loss = functional.cross_entropy(model(leaf), y)
        del model
        gc.collect()
        (found,) = torch.autograd.grad(loss, leaf)
        return [digest(loss), digest(found)]

    wanted = gradients(built(Blocks))
    assert gradients(compiled(extra=1 << 20)) == wanted


@pytest.mark.slow
def test_loops_of_two_models_in_turn() -> None:
    def loop(models: Any, see: Seen) -> None:
        for x, y in DATA[:3]:
            for model in models:
                model.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                see.gradients(model)

    wanted = play(nn.ModuleList([built(Blocks), built(Blocks)]), loop)
    models = nn.ModuleList([compiled(extra=2 << 20), compiled(extra=2 << 20)])
    assert play(models, loop) == wanted
    assert all(compiled_of(model).calls.num_divergences == 0 for model in models)
