"""Aliases, views, writes in place, layouts, and tensors of other classes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows, sgd


@case
def input_is_written(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        x.mul_(2)
        x[0] = 1
        return me.net(x)

    net = Net(run, net=mlp())
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)
        play.saw(x)


@case
def view_of_an_input_is_written(play: Play) -> None:
    def run(me: Any, x: Tensor, y: Tensor) -> Any:
        x[:, 0].zero_()
        return me.net(x) + y

    net = Net(run, net=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches(5)):
        y = (x.clone(), x, x.view(-1, WIDTH), x[:16].repeat(2, 1), x.flip(0))[number]
        play.backward(mean_square(model(x, y)), net)
        play.saw(x, y)


@case
def two_views_of_one_memory(play: Play) -> None:
    def run(me: Any, x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return me.net(x * y)

    net = Net(run, net=mlp())
    model, memory = play.model(net), rows(64)
    for at in (0, 16, 32, 31):
        play.backward(mean_square(model(memory[:32], memory[at : at + 32])), net)
        play.saw(memory)


@case
def one_tensor_given_twice(play: Play) -> None:
    net = Net(lambda me, x, y: me.one(x) * me.two(y), one=mlp(), two=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        x.requires_grad_()
        play.backward(mean_square(model(x, x if number % 2 else x.detach().cos())), net)
        play.saw(x.grad)


@case
def activations_in_place(play: Play) -> None:
    net = nn.Sequential(
        nn.Linear(WIDTH, 32),
        nn.Dropout(0.2, inplace=True),
        nn.ReLU(inplace=True),
        nn.Linear(32, WIDTH),
        nn.SiLU(inplace=True),
        nn.Hardtanh(inplace=True),
    )
    play.train(net, batches())


@case
def rows_are_assigned(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        out = torch.zeros(len(x), 2 * WIDTH)
        out[:, :WIDTH] = me.one(x)
        out[::2, WIDTH:] = me.two(x[::2])
        out[out < 0] *= 0.1
        return out

    play.train(Net(run, one=mlp(), two=mlp()), batches())


@case
def output_is_written_by_the_caller(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        out.mul_(2)
        out[0] = 0
        play.backward(mean_square(out), net)


@case
def output_is_written_without_gradients(play: Play) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid())
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        loss = out.sum()
        with torch.no_grad():
            out.zero_()
        try:
            play.backward(loss, net)
        except RuntimeError:
            play.saw("refused")


@case
def input_is_written_before_the_backward(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        x.zero_()
        try:
            play.backward(loss, net)
        except RuntimeError:
            play.saw("refused")
            net.zero_grad()


@case
def input_is_used_again_as_buffer(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    memory = torch.empty(32, WIDTH)
    for (x,) in batches():
        memory.copy_(x)
        play.backward(mean_square(model(memory)), net)
        optimizer.step()


@case
def parameter_is_written_before_the_backward(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        with torch.no_grad():
            net[3].weight.mul_(0.5)
        try:
            play.backward(loss, net)
        except RuntimeError:
            play.saw("refused")
            net.zero_grad()


@case
def outputs_are_views(play: Play) -> None:
    net = Net(lambda me, x: (h := me.net(x), h.t(), h[2:5], h.view(-1)), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        out, turned, part, flat = model(x)
        play.saw(part.is_contiguous(), turned.stride(), flat.data_ptr() == out.data_ptr())
        play.backward(turned.square().mean(), net)


@case
def output_is_a_view_of_the_input(play: Play) -> None:
    net = Net(lambda me, x: (me.net(x), x[2:], x.view(-1), x.detach()), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        out, part, flat, plain = model(x)
        play.backward(out.mean(), net)
        part.zero_()
        play.saw(x, flat, plain)


@case
def outputs_are_kept(play: Play) -> None:
    net, kept = mlp(), list[Tensor]()
    model, optimizer = play.model(net), sgd(net.parameters())
    for (x,) in batches(5):
        out = model(x)
        kept.append(out)
        play.backward(mean_square(out), net)
        optimizer.step()
        play.saw(kept)


@case
def gradients_are_kept(play: Play) -> None:
    net, kept = mlp(), list[Any]()
    model = play.model(net)
    for (x,) in batches(5):
        mean_square(model(x)).backward()
        kept += [one.grad for one in net.parameters()]
        net.zero_grad()
        play.saw(kept)


@case
def channels_last_pictures(play: Play) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = play.model(net)
    for number in range(4):
        x = rows(2, 3, 8, 8, seed=number)
        if number % 2:
            x = x.to(memory_format=torch.channels_last)
        if number == 2:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        out = model(x)
        play.saw(out.stride())
        play.backward(mean_square(out), net)


@case
def strides_of_gradients(play: Play) -> None:
    net = Net(lambda me, x: x @ me.weight, weight=nn.Parameter(rows(WIDTH).t()))
    model = play.model(net)
    for (x,) in batches():
        x = x.t().contiguous().t().requires_grad_()
        mean_square(model(x)).backward()
        assert net.weight.grad is not None
        assert x.grad is not None
        play.saw(net.weight.grad.stride(), x.grad.stride(), net.weight.grad, x.grad)


@case
def inputs_without_order(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number in range(5):
        whole = rows(64, 2 * WIDTH, seed=number)
        x = (
            whole[:32, :WIDTH], whole[::2, ::2], whole.view(32, -1)[:, :WIDTH].flip(1),
            rows(WIDTH, 32).t(), rows(1).expand(32, WIDTH),
        )[number]  # fmt: skip
        play.backward(mean_square(model(x)), net)


@case
def expanded_input_is_written(play: Play) -> None:
    def run(me: Any, x: Tensor, y: Tensor) -> Any:
        return me.net(x) + y.expand(32, WIDTH).clone().mul_(2)

    net = Net(run, net=mlp())
    play.train(net, [(x, x[0]) for (x,) in batches()])


@case
def copied_into_a_part(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.net(x)
        left, right = h.chunk(2, 1)
        left = left.clone()
        left.copy_(right.sigmoid())
        return torch.cat([left, right.unsqueeze(0).squeeze(0)], 1) * h.select(1, 0)[:, None]

    play.train(Net(run, net=mlp()), batches())


@case
def cache_of_keys_and_values(play: Play) -> None:
    def run(me: Any, x: Tensor, cache: list[Tensor]) -> Any:
        key = me.key(x)
        keys = torch.cat([*cache, key])
        cache[:] = [keys.detach()]
        return F.softmax(x @ keys.t(), 1) @ keys

    net = Net(run, key=mlp())
    model, cache = play.model(net), list[Tensor]()
    for (x,) in batches(4, 8):
        play.backward(mean_square(model(x, cache)), net)
        play.saw(cache)


@case
def cache_that_is_filled(play: Play) -> None:
    def run(me: Any, x: Tensor, at: int) -> Any:
        me.cache[at : at + len(x)] = me.key(x).detach()
        return me.key(x) @ me.cache[: at + len(x)].t()

    net = Net(run, key=mlp(), cache=torch.zeros(32, WIDTH))
    model = play.model(net)
    for number, (x,) in enumerate(batches(4, 8)):
        play.backward(mean_square(model(x, 8 * number)), net)


class Tagged(torch.Tensor):
    """A tensor that carries a word."""

    tag = "none"


class Logged(torch.Tensor):
    """A tensor that counts the functions that it takes part in."""

    num = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.num += 1
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Scaled(torch.Tensor):
    """A wrapper around a tensor and a scale."""

    inner: Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, _meta: Any, _size: Any, _stride: Any) -> Any:
        return Scaled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map(lambda x: x.inner if isinstance(x, Scaled) else x, (args, kwargs or {}))
        return tree_map(lambda x: Scaled(x) if isinstance(x, Tensor) else x, func(*args, **kwargs))


@case
def tagged_input(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        given = x.as_subclass(Tagged)
        given.tag = "user"
        out = model(given)
        play.saw(type(out).__name__)
        play.backward(mean_square(out).as_subclass(Tensor), net)


@case
def logged_input(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        out = model(x.as_subclass(Logged))
        play.saw(type(out).__name__)
        play.backward(out.as_subclass(Tensor).mean(), net)


@case
def wrapped_input(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches(3):
        out = model(Scaled(x))
        play.saw(type(out).__name__, out.inner)


@case
def parameter_as_input(play: Play) -> None:
    net, prompt = mlp(), nn.Parameter(rows())
    model, optimizer = play.model(net), sgd([prompt])
    for _ in range(4):
        play.backward(mean_square(model(prompt)), net)
        play.saw(prompt.grad)
        optimizer.step()
        optimizer.zero_grad()


@case
def computed_input(play: Play) -> None:
    before, net = mlp(), mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        h = before(x)
        out = model(h.detach() if number % 2 else h)
        play.backward(mean_square(out) + h.mean(), net, before)


@case
def input_wants_gradients_at_times(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        x.requires_grad_(number % 2 == 0)
        play.backward(mean_square(model(x)), net)
        play.saw(x.grad)


@case
def memory_is_resized(play: Play) -> None:
    net = mlp()
    model, memory = play.model(net), torch.empty(0)
    for size in (8, 16, 4):
        memory.resize_(size, WIDTH).fill_(0.5)
        play.backward(mean_square(model(memory)), net)


@case
def looked_at_by_strides(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        return me.net(x.as_strided((16, WIDTH), (WIDTH, 1), x.storage_offset() + WIDTH))

    play.train(Net(run, net=mlp()), [(rows(40, seed=n)[n : n + 32],) for n in range(4)])
