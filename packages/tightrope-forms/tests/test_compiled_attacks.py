"""What a rewritten step must not change: random numbers, buffers, writes in place, and gradients."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import tightrope
from tightrope.core import TightropeError
from tightrope.fuse.tolerance import WHOLE_STEP, difference
from tightrope_forms import compiled
from tightrope_forms.compiled import solve_part
from tightrope_forms.rewrite.egraph import GETITEM
from tightrope_forms.rewrite.extract import CostWeights
from tightrope_forms.rewrite.front import ExportedValues, emitted, exported, sections

ROWS, WIDTH = 256, 64


@pytest.fixture(autouse=True)
def _any_form_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured: prices of small ops scatter."""
    monkeypatch.setattr(compiled, "_WORTH", 1e9)
    monkeypatch.setattr(compiled, "_SCATTER", 1e9)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Body(nn.Module):
    """Layers whose form is smaller, around something else."""

    def __init__(self, inner: Callable[["Body", Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.act = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Swish()
        self.other, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        found = self.inner(self, self.act(self.first(self.act(x))))
        x, *rest = found if isinstance(found, tuple) else (found,)
        x = self.act(self.last(self.act(x))).square().mean()
        return (x, *rest) if rest else x


def results(model: Body, given: list[Tensor], losses: Callable[[Any], Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    made: list[Tensor] = []
    for x in given:
        found = model(x)
        made += found if isinstance(found, tuple) else (found,)
        losses(found).backward()
    made += [torch.tensor(one.stride()) for one in made]
    made += [one.grad for one in model.parameters() if one.grad is not None]
    return [one.detach().clone() for one in (*made, *model.buffers(), torch.rand(4))]


def loss_of(found: Any) -> Tensor:
    return found if isinstance(found, Tensor) else sum(one.float().square().mean() for one in found)  # type: ignore[return-value]


def compared(
    inner: Callable[[Body, Tensor], Any],
    *,
    losses: Callable[[Any], Tensor] = loss_of,
    change: Callable[[Body], None] = lambda _: None,
    sizes: tuple[int, ...] = (ROWS, ROWS),
    budget: str = "100%",
    **options: Any,
) -> str:
    """Train a model as it is and rewritten; compare everything, and return the form."""
    torch.manual_seed(0)
    given = [torch.randn(size, WIDTH, requires_grad="shapes" not in options) for size in sizes]
    again = [one.detach().clone().requires_grad_(one.requires_grad) for one in given]
    plain, model = Body(inner), Body(inner)
    model.load_state_dict(plain.state_dict())
    change(plain)
    change(model)
    right = results(plain, given, losses)
    tightrope.compile(model, budget=budget, rewrite=True, progress=False, **options)
    found = results(model, again, losses)
    report = tightrope.report(model)
    del model  # and its limit
    gc.collect()
    right += [x.grad for x in given if x.grad is not None]
    found += [x.grad for x in again if x.grad is not None]
    assert all(difference(two, one) <= WHOLE_STEP for one, two in zip(right, found, strict=True))
    assert report.form in str(report)
    return report.form


def tied(body: Body) -> None:
    body.last.weight = body.first.weight


def frozen(body: Body) -> None:
    body.first.requires_grad_(False)
    body.other.requires_grad_(False)


def broken(body: Body, x: Tensor) -> Tensor:
    x = body.other(x)
    torch._dynamo.graph_break()
    return x * 2


def draws_between(body: Body, x: Tensor) -> Tensor:
    """A merged product would need the second weight, and its random numbers, before the first ones."""
    noisy = torch.dropout(nn.functional.linear(x, body.first.weight), 0.5, train=True)
    weight = torch.dropout(body.other.weight, 0.5, train=True)
    return noisy + nn.functional.linear(x, weight)


def two_uses(body: Body, x: Tensor) -> Tensor:
    return body.other(x) + nn.functional.linear(x, body.first.weight)


def without_gradients(body: Body, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = Swish()(body.other(x))
    return two_uses(body, x) * target + Swish()(body.other(x)).detach()


def double(body: Body, x: Tensor) -> Tensor:
    wide = x.double()
    return (wide * torch.sigmoid(wide)).to(x.dtype) + body.other(x).bfloat16().float()


def checkpointed(body: Body, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return two_uses(body, torch.dropout(y, 0.2, train=True))

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)  # type: ignore[no-any-return]


def attention(body: Body, x: Tensor) -> tuple[Tensor, Tensor]:
    """The merged kernel lays its result out in another way than a product."""
    q, k, v = (y.view(4, -1, 4, WIDTH // 4).transpose(1, 2) for y in (x, body.other(x), body.last(x)))
    mixed = torch.softmax(q @ k.transpose(-2, -1) * 0.25, -1) @ v
    return x + mixed.view(4, -1, WIDTH).view(-1, WIDTH), mixed


ALIKE: dict[str, tuple[Callable[[Body, Tensor], Any], dict[str, Any]]] = {
    "dropout": (lambda b, x: torch.dropout(b.other(x), 0.3, train=True) + torch.rand_like(x), {}),
    "draws between": (draws_between, {}),
    "batch norm": (lambda b, x: b.norm(b.norm(x)), {}),
    "evaluation": (lambda b, x: b.norm(x), {"change": lambda b: b.eval()}),
    "tied weights": (two_uses, {"change": tied}),
    "frozen parameters": (two_uses, {"change": frozen}),
    "no gradients inside": (without_gradients, {}),
    "types": (double, {}),
    "layouts": (attention, {}),
    "returned activation": (lambda b, x: (b.other(x), b.other(x) * torch.sigmoid(b.other(x)), x), {}),
    "returned and not read": (lambda b, x: (b.other(x), x), {"losses": lambda found: found[0]}),
    "a view is returned": (lambda b, x: (x, x.view(-1)), {}),
    "a graph break": (broken, {"budget": "64MB", "fallback": "pieces"}),
    "sizes": (two_uses, {"sizes": (ROWS, ROWS // 2, ROWS)}),
    "buckets": (two_uses, {"sizes": (ROWS, ROWS // 2, ROWS), "shapes": "bucket"}),
    "a share": (two_uses, {"budget": "100%"}),
    "verified": (two_uses, {"verify": "graph"}),
    "no overwriting": (two_uses, {"overwrite": False}),
}


@pytest.mark.filterwarnings("ignore:tightrope")  # it runs in pieces
@pytest.mark.parametrize("name", ALIKE)
def test_values_buffers_gradients_and_random_numbers_stay(name: str) -> None:
    inner, options = ALIKE[name]
    form = compared(inner, **options)
    expected = {"buckets": "not rewritten: no training", "layouts": "not rewritten"}.get(name, "rewritten, ")
    assert form.startswith(expected), form


class Drawing(nn.Module):
    def __init__(self, weight_first: bool) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.ones(WIDTH, WIDTH)) for _ in range(2))
        self.weight_first = weight_first

    def forward(self, x: Tensor) -> Tensor:
        if self.weight_first:
            two = torch.dropout(self.two, 0.5, train=True)
        one = torch.dropout(nn.functional.linear(x, self.one), 0.5, train=True)
        if not self.weight_first:
            two = torch.dropout(self.two, 0.5, train=True)
        return (one + nn.functional.linear(x, two)).sum()


@pytest.mark.parametrize("weight_first", [False, True])
def test_no_form_draws_random_numbers_in_another_order(weight_first: bool) -> None:
    whole = exported(Drawing(weight_first), (torch.ones(WIDTH, WIDTH),), {})
    (part,) = sections(whole, ExportedValues(whole))
    solved = solve_part(part, CostWeights())
    assert solved is not None
    merged = {
        one: node for one, nodes in solved.costs.graph.nodes.items() for node in nodes if node.op is GETITEM
    }
    assert len(merged) == 2, "x A', x B' = split(x cat(A, B)')"
    form = emitted(whole, [part], [(part.graph, solved.costs.given() | merged)])
    assert (form is not None) == weight_first


def test_a_checkpoint_is_named() -> None:
    assert compared(checkpointed) == "not rewritten: it has graphs inside, such as checkpoints."


class Reads(nn.Module):
    """Reads a buffer before and after something writes it."""

    def __init__(self, write: Callable[["Reads", Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.norm, self.write = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), write
        self.register_buffer("level", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        before = self.level * 2 + self.norm.running_mean
        x = self.write(self, x)
        x = x * torch.sigmoid(x) + before * (self.level * 2 + self.norm.running_mean)
        return (x * torch.sigmoid(x)).square().mean()


def adds(model: Reads, x: Tensor) -> Tensor:
    model.level.add_(1)
    return x


def adds_out(model: Reads, x: Tensor) -> Tensor:
    torch.add(model.level, 1, out=model.level)
    return x


def adds_to_a_view(model: Reads, x: Tensor) -> Tensor:
    model.level[:7].mul_(3)
    return x


WRITES: dict[str, Callable[[Reads, Tensor], Tensor]] = {
    "a buffer": adds,
    "out=": adds_out,
    "a view": adds_to_a_view,
    "running statistics": lambda model, x: model.norm(x),  # type: ignore[no-any-return]
    "copies": lambda model, x: x + model.level.copy_(x.detach().mean(0)),
}


@pytest.mark.parametrize("name", WRITES)
def test_no_read_moves_behind_a_write(name: str) -> None:
    torch.manual_seed(0)
    plain, model = Reads(WRITES[name]), Reads(WRITES[name])
    model.load_state_dict(plain.state_dict())
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH)
        losses = plain(x), model(x)
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    assert all(map(torch.equal, plain.buffers(), model.buffers()))
    assert "writes in place" in tightrope.report(model).form


def test_an_input_that_is_overwritten_after_it_was_read() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            read = self.layer(x * 3)
            x.zero_()
            return (read * torch.sigmoid(read)).sum() + x.sum()

    torch.manual_seed(0)
    model = Overwrites()
    x = torch.randn(ROWS, WIDTH)
    right = model(x.clone())
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    assert torch.equal(model(x), right)
    assert not x.any()
    assert "writes in place" in tightrope.report(model).form


def test_autocast_is_named() -> None:
    torch.manual_seed(0)
    model, x = Body(two_uses), torch.randn(ROWS, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        right = model(x)
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(x)
    found.backward()
    assert torch.equal(found, right)
    assert tightrope.report(model).form == "not rewritten: autocast chooses the types of its ops."


def test_a_second_derivative_is_refused_as_without() -> None:
    said = []
    for rewrite in (False, True):
        torch.manual_seed(0)
        model, x = Body(two_uses), torch.randn(ROWS, WIDTH, requires_grad=True)
        tightrope.compile(model, budget="100%", rewrite=rewrite, progress=False)
        (first,) = torch.autograd.grad(model(x), x, create_graph=True)
        with pytest.raises((TightropeError, RuntimeError)) as refused:
            first.sum().backward()
        said.append(str(refused.value))
    assert said[0] == said[1]


@pytest.mark.filterwarnings("ignore:tightrope")  # of level E
def test_inference_and_level_e_say_that_nothing_was_rewritten() -> None:
    torch.manual_seed(0)
    model, x = Body(two_uses), torch.randn(ROWS, WIDTH)
    right = model(x)
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    with torch.no_grad():
        assert torch.equal(model(x), right)
    assert tightrope.report(model).form == "not rewritten: no training graph of fixed sizes ran"

    def uncaptured(body: Body, x: Tensor) -> Tensor:
        return x if x.sum().item() > 1e9 else x * 2

    model = Body(uncaptured)
    right = model(x)
    tightrope.compile(model, budget="30MB", rewrite=True, progress=False, fallback="evict")
    for _ in range(2):
        found = model(x)
        found.backward()
    assert torch.equal(found, right)
    assert tightrope.report(model).level == "E"
    assert tightrope.report(model).form.startswith("not rewritten")


def test_a_form_that_does_not_fit_later_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Body(two_uses), torch.randn(ROWS, WIDTH)
    right = model(x)
    choose = compiled.chosen_form

    def tight(*given: Any) -> Any:
        form, said, _ = choose(*given)
        return form, said, 1  # no plan of it has one byte

    monkeypatch.setattr(compiled, "chosen_form", tight)
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    found = model(x)
    found.backward()
    assert torch.equal(found, right)
    assert tightrope.report(model).form == "rewritten, it does not fit"


def test_page_and_explanation_say_which_form_it_is() -> None:
    torch.manual_seed(0)
    model, x = Body(two_uses), torch.randn(ROWS, WIDTH)
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    model(x).backward()
    report = tightrope.report(model)
    (graph, plan) = report.planned[0]
    assert graph.name == f"Body, {report.form}"
    assert report.form.split(":")[0] in plan.explain(graph)
    assert report.form.split(" ->")[0] in report.html().replace("&gt;", ">")
