"""Training loops with wrong verbs in them, run beside the same loop in plain torch.

A session holds a model, an optimizer, a batch and what the last forward gave. A verb is a function of a
session that returns tensors to compare. Both sessions do every verb; what torch raises, or computes, the
planned one has to raise or compute.
"""

import copy
import gc
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import torch
from torch import nn

import tightrope
from benchmarks.wrong.values import batch_values


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x.reshape(-1, 1, 8, 8))
        return found


class _Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.one(x)
        if hidden.sum() > 1e9:
            hidden = hidden * 2
        found: torch.Tensor = self.two(hidden.relu())
        return found


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.left(x).tanh() * self.right(y).sigmoid()
        return found


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.table(x).relu())
        return found


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 8))


NETS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]]] = {
    "mlp": (_mlp, lambda: (torch.randn(4, 8),)),
    "normed": (_Normed, lambda: (torch.randn(4, 64),)),
    "broken": (_Broken, lambda: (torch.randn(4, 8),)),
    "two": (_Two, lambda: (torch.randn(4, 8), torch.randn(4, 8))),
    "words": (_Words, lambda: (torch.randint(20, (4, 6)),)),
}


@dataclass
class Session:
    """A loop, planned or plain.

    Attributes:
        model: trained.
        batch: of the next forward.
        rng: draws the same for both loops.
        budget: None = plain.
        optimizer: steps.
        output: of the last forward.
        loss: of it.
        known: more that has to stay alive.
    """

    model: nn.Module
    batch: tuple[Any, ...]
    rng: Random
    budget: str | int | None
    optimizer: torch.optim.Optimizer
    output: Any = None
    loss: Any = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def planned(self, model: nn.Module) -> nn.Module:
        """Compile another model too, where this loop is planned."""
        return model if self.budget is None else tightrope.compile(model, budget=self.budget, progress=False)

    def results(self) -> list[Any]:
        """Look at what training has made so far."""
        parameters = list(self.model.parameters())
        return [*parameters, *(p.grad for p in parameters), *self.model.buffers()]


def session(net: str, seed: int, budget: str | int | None) -> Session:
    """Begin a loop."""
    torch.manual_seed(seed)
    make, batch = NETS[net]
    model = make()
    given = batch()
    found = Session(
        model, given, Random(seed), budget, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    found.planned(model)
    torch.manual_seed(seed)
    return found


# right verbs


def forward(at: Session) -> list[Any]:
    at.output = at.model(*at.batch, **at.kwargs)
    at.loss = at.output.float().square().mean()
    return [at.output, at.loss]


def backward(at: Session) -> list[Any]:
    if at.loss is not None:
        at.loss.backward()
    return at.results()


def update(at: Session) -> list[Any]:
    at.optimizer.step()
    at.optimizer.zero_grad()
    return at.results()


# wrong ones


def other_batch(at: Session) -> list[Any]:
    position = at.rng.randrange(len(at.batch))
    _, value = batch_values(at.rng, at.batch[position])
    at.batch = (*at.batch[:position], value, *at.batch[position + 1 :])
    return forward(at)


def one_input_less(at: Session) -> list[Any]:
    at.batch = at.batch[:-1]
    return forward(at)


def one_input_more(at: Session) -> list[Any]:
    at.batch = (*at.batch, torch.ones(2))
    return forward(at)


def unknown_keyword(at: Session) -> list[Any]:
    at.kwargs = {at.rng.choice(("z", "mask", "input", "self", "x")): torch.ones(2)}
    return forward(at)


def change_the_input(at: Session) -> list[Any]:
    for one in at.batch:
        if isinstance(one, torch.Tensor):
            one.add_(1).clamp_(max=19)
    return []


def change_a_parameter(at: Session) -> list[Any]:
    with torch.no_grad():
        for parameter in at.model.parameters():
            parameter.mul_(2)
    return []


def change_the_output(at: Session) -> list[Any]:
    if at.output is not None:
        with torch.no_grad():
            at.output.mul_(2)
    return []


def change_the_data(at: Session) -> list[Any]:
    next(iter(at.model.parameters())).data.mul_(3)
    return []


def retain(at: Session) -> list[Any]:
    if at.loss is not None:
        at.loss.backward(retain_graph=True)
    return at.results()


def second_order(at: Session) -> list[Any]:
    found = torch.autograd.grad(at.loss, list(at.model.parameters()), create_graph=True)
    return list(
        torch.autograd.grad(
            torch.stack([one.square().sum() for one in found]).sum(), list(at.model.parameters())
        )
    )


def unused(at: Session) -> list[Any]:
    return list(torch.autograd.grad(at.loss, [torch.ones(3, requires_grad=True)]))


def wrong_tangent(at: Session) -> list[Any]:
    value = at.rng.choice(
        (torch.ones(3), torch.ones(2, dtype=torch.long), "x", 1.0, torch.ones(()).to("meta"))
    )
    at.output.backward(value)
    return at.results()


def no_scalar(at: Session) -> list[Any]:
    at.output.backward()
    return at.results()


def other_optimizer(at: Session) -> list[Any]:
    at.optimizer = torch.optim.Adam(nn.Linear(3, 3).parameters())
    return update(at)


def other_type(at: Session) -> list[Any]:
    getattr(at.model, at.rng.choice(("double", "half", "bfloat16", "float")))()
    return []


def to_meta(at: Session) -> list[Any]:
    at.model.to("meta")
    return []


def to_another_device(at: Session) -> list[Any]:
    at.model.to(at.rng.choice(("cuda:7", "xpu", "mps", "cpux", "")))
    return []


def freeze(at: Session) -> list[Any]:
    for parameter in list(at.model.parameters())[: at.rng.choice((1, 99))]:
        parameter.requires_grad_(False)
    return []


def delete_a_parameter(at: Session) -> list[Any]:
    module = next(one for one in at.model.modules() if "weight" in one._parameters)
    del module.weight
    return []


def no_parameter(at: Session) -> list[Any]:
    module = next(one for one in at.model.modules() if "weight" in one._parameters)
    module.register_parameter("weight", None)
    return []


def shrink_a_parameter(at: Session) -> list[Any]:
    parameter = next(iter(at.model.parameters()))
    parameter.data = parameter.data[:1]
    return []


def replace_a_module(at: Session) -> list[Any]:
    name = next(iter(at.model._modules))
    setattr(at.model, name, nn.Linear(8, 8))
    return []


def load_other(at: Session) -> list[Any]:
    at.model.load_state_dict({"x": torch.ones(3)})
    return []


def forget_the_model(at: Session) -> list[Any]:
    parameters = list(at.model.parameters())
    at.model = nn.Identity()
    gc.collect()
    if at.loss is not None:
        at.loss.backward()
    return [parameter.grad for parameter in parameters]


def forget_the_output(at: Session) -> list[Any]:
    at.output = at.loss = None
    gc.collect()
    return []


def without_gradients(at: Session) -> list[Any]:
    with torch.no_grad():
        return forward(at)


def inference(at: Session) -> list[Any]:
    with torch.inference_mode():
        return forward(at)


def copied(at: Session) -> list[Any]:
    at.model = copy.deepcopy(at.model)
    return forward(at)


def pickled(at: Session) -> list[Any]:
    file = io.BytesIO()
    torch.save(at.model, file)
    file.seek(0)
    at.model = torch.load(file, weights_only=False)
    return forward(at)


def failing_hook(at: Session) -> list[Any]:
    def hook(*_: Any) -> None:
        raise ZeroDivisionError("a hook of the user")

    at.model.register_forward_hook(hook)
    return forward(at)


def failing_gradient_hook(at: Session) -> list[Any]:
    def hook(_: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("a hook of the user")

    next(iter(at.model.parameters())).register_hook(hook)  # type: ignore[no-untyped-call]
    return []


def compiled_again(at: Session) -> list[Any]:
    budget = at.rng.choice(("1KiB", "64MiB", "90%", "5%"))
    if at.budget is not None:
        at.model = tightrope.compile(at.model, budget=budget, progress=False)
    return []


def two_forwards(at: Session) -> list[Any]:
    first, second = at.model(*at.batch), at.model(*at.batch)
    (first - second * 2).square().sum().backward()
    return [first, second, *at.results()]


def in_a_thread(at: Session) -> list[Any]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend(forward(at))
            at.loss.backward()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[-1], BaseException):
        raise found[-1]
    return [*found, *at.results()]


def other_mode(at: Session) -> list[Any]:
    at.model.train(not at.model.training)
    return []


def forgotten_graphs(at: Session) -> list[Any]:
    torch._dynamo.reset()
    return []


def autocast(at: Session) -> list[Any]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return forward(at)


def anomaly(at: Session) -> list[Any]:
    with torch.autograd.detect_anomaly(check_nan=True):
        forward(at)
        at.loss.mul(float("nan")).backward()
    return at.results()


def meta_default(at: Session) -> list[Any]:
    with torch.device("meta"):
        return forward(at)


def too_much(at: Session) -> list[Any]:
    """Ask for far more than any budget here between forward and backward."""
    if at.budget is not None:
        try:
            torch.empty(2**40, dtype=torch.uint8)
        except torch.OutOfMemoryError as error:
            if not isinstance(error, tightrope.TightropeError):
                raise
    return []


Verb = Callable[[Session], list[Any]]
WRONG: Final[Sequence[Verb]] = (
    other_batch, other_batch, other_batch, one_input_less, one_input_more, unknown_keyword, change_the_input,
    change_a_parameter, change_the_output, change_the_data, backward, retain, second_order, unused,
    wrong_tangent, no_scalar, other_optimizer, other_type, to_meta, to_another_device, freeze,
    delete_a_parameter, no_parameter, shrink_a_parameter, replace_a_module, load_other, forget_the_model,
    forget_the_output, without_gradients, inference, copied, pickled, failing_hook, failing_gradient_hook,
    compiled_again, two_forwards, in_a_thread, other_mode, forgotten_graphs, autocast, anomaly,
    meta_default, too_much, update,
)  # fmt: skip
RIGHT: Final[Sequence[Verb]] = (forward, backward, update)


def verbs(rng: Random) -> tuple[Verb, ...]:
    """Draw two rounds of training with one to three wrong verbs anywhere."""
    found = list(RIGHT) * 2
    for _ in range(rng.choice((1, 1, 2, 3))):
        found.insert(rng.randrange(len(found) + 1), rng.choice(WRONG))
    return tuple(found)
