"""Branches, exceptions, state of Python, and randomness."""

import contextlib
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows, sgd


@case
def branch_on_a_value(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.one(x)
        return me.two(h) if h.mean().item() > 0 else me.three(h)

    play.train(
        Net(run, one=mlp(), two=mlp(), three=mlp()), [(x * (-1) ** n,) for n, (x,) in enumerate(batches())]
    )


@case
def loop_until_small(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        steps = 0
        while x.abs().max() > 1 and steps < 5:
            x = me.net(x)
            steps += 1
        return me.net(x) * (1 + steps)

    play.train(Net(run, net=mlp()), [(x * (1 + n),) for n, (x,) in enumerate(batches())])


@case
def branch_of_torch(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: me.one(y), lambda y: me.two(y), (x,))

    play.train(Net(run, one=nn.Linear(WIDTH, WIDTH), two=nn.Linear(WIDTH, WIDTH)), batches())


@case
def error_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor, fail: bool) -> Any:
        h = me.one(x)
        if fail:
            raise KeyError("of the user")
        return me.two(h)

    net = Net(run, one=mlp(dropout=0.1), two=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches(5)):
        try:
            play.backward(mean_square(model(x, number % 2 == 1)), net)
        except KeyError as error:
            play.saw(str(error))


@case
def error_caught_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        try:
            return me.net(x.view(-1, 512))
        except RuntimeError:
            return me.net(x) * 2

    play.train(Net(run, net=mlp()), batches())


@case
def wrong_shape_then_right(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches(5)):
        try:
            play.backward(mean_square(model(x[:, :7] if number in (0, 3) else x)), net)
        except RuntimeError as error:
            play.saw("shapes" in str(error))


@case
def interrupted_forward(play: Play) -> None:
    calls = [0]

    def hook(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt

    net = mlp(dropout=0.1)
    model, optimizer = play.model(net), sgd(net.parameters())
    for (x,) in batches(5):
        out = model(x)
        with contextlib.suppress(KeyboardInterrupt):
            hook()
            play.backward(mean_square(out), net)
            optimizer.step()
    play.state(net)


@case
def interrupted_backward(play: Play) -> None:
    net, calls = mlp(dropout=0.1), [0]

    def hook(_: Tensor) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt

    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        out.register_hook(hook)
        try:
            play.backward(mean_square(out), net)
        except KeyboardInterrupt:
            play.saw("interrupted")
            net.zero_grad()


@case
def value_is_checked(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.net(x)
        assert torch.isfinite(h).all()
        return h

    play.train(Net(run, net=mlp()), batches())


@case
def counted_in_python(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        me.calls += 1
        return me.net(x) * me.calls

    net = Net(run, net=mlp(), calls=0)
    play.train(net, batches(5))
    play.saw(net.calls)


@case
def kept_in_lists_of_python(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.net(x)
        me.seen.append(tuple(x.shape))
        me.by_size.setdefault(len(x), []).append(len(me.seen))
        return h

    net = Net(run, net=mlp(), seen=[], by_size={})
    play.train(net, [(rows(size),) for size in (4, 8, 4, 8, 4)])
    play.saw(net.seen, net.by_size)


@case
def table_cached_by_length(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        if len(x) not in me.tables:
            me.tables[len(x)] = torch.arange(len(x)).float().sin()[:, None]
        return me.net(x + me.tables[len(x)])

    play.train(Net(run, net=mlp(), tables={}), [(rows(size),) for size in (4, 8, 4, 8, 6)])


@case
def warmup_by_a_counter(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        me.steps += 1
        if me.steps < 3:
            x = me.one(x)
        return me.two(x)

    net = Net(run, one=mlp(), two=mlp(), steps=0)
    model = play.model(net)
    for (x,) in batches(5):
        play.backward(mean_square(model(x)), net)


SETTINGS: dict[str, Any] = {"scale": 1.0}


@case
def global_setting_changes(play: Play) -> None:
    net = Net(lambda me, x: me.net(x) * SETTINGS["scale"], net=mlp())
    model = play.model(net)
    try:
        for number, (x,) in enumerate(batches()):
            SETTINGS["scale"] = 1.0 + number
            play.backward(mean_square(model(x)), net)
    finally:
        SETTINGS["scale"] = 1.0


@case
def forward_is_replaced(play: Play) -> None:
    net = Net(lambda me, x: me.net(x), net=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        if number == 2:
            plain = net.net.forward
            net.net.forward = lambda given, plain=plain: plain(given).sin()
        play.backward(mean_square(model(x)), net)


@case
def forward_of_the_model_is_replaced(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        if number == 2:
            plain = net.forward
            net.forward = lambda given, plain=plain: plain(given).sin()
        play.backward(mean_square(model(x)), net)


@case
def own_contexts_in_the_forward(play: Play) -> None:
    @contextlib.contextmanager
    def scaled(me: Any) -> Any:
        me.scale *= 2
        try:
            yield me.scale
        finally:
            me.scale /= 2

    def run(me: Any, x: Tensor) -> Any:
        with scaled(me) as factor:
            return me.net(x) * factor

    play.train(Net(run, net=mlp(), scale=1.0), batches())


@case
def words_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.one(x)
        print("mean", h.mean().item())
        warnings.warn("of the user", stacklevel=1)
        return me.two(h)

    play.train(Net(run, one=mlp(), two=mlp()), batches(3))


@case
def seed_set_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        torch.manual_seed(5)
        return me.net(x + torch.rand(x.shape))

    play.train(Net(run, net=mlp(dropout=0.3)), batches())


@case
def random_state_forked_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            noise = torch.randn(x.shape)
        return me.net(x + noise)

    play.train(Net(run, net=mlp(dropout=0.3)), batches())


@case
def noise_of_numpy_and_python(play: Play) -> None:
    random.seed(1)
    np.random.seed(1)

    def run(me: Any, x: Tensor) -> Any:
        return me.net(x * random.random() + float(np.random.rand()))

    play.train(Net(run, net=mlp()), batches())
    play.saw(random.random(), np.random.rand())


@case
def kinds_of_noise(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = F.alpha_dropout(me.net(x), 0.1) + torch.randn_like(x) * torch.rand(len(x), 1)
        h = F.rrelu(h, training=True) * torch.bernoulli(torch.full_like(h, 0.7))
        return (
            h
            + torch.normal(0.0, 1.0, h.shape)
            + torch.randint(3, h.shape)
            + torch.multinomial(h.abs() + 1, 1)
        )

    play.train(Net(run, net=mlp()), batches())


@case
def recursion(play: Play) -> None:
    def run(me: Any, x: Tensor, depth: int = 3) -> Any:
        return me.net(x) if not depth else x + run(me, me.net(x).tanh(), depth - 1)

    play.train(Net(run, net=mlp()), batches())


@case
def scripted_part(play: Play) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = torch.jit.trace(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), rows())  # type: ignore[no-untyped-call]
    play.train(Net(lambda me, x: me.part(x) * 2, part=part, net=mlp()), batches())


@case
def decorated_forward(play: Play) -> None:
    @torch.no_grad()
    def target(me: Any, x: Tensor) -> Any:
        return me.one(x)

    net = Net(lambda me, x: F.mse_loss(me.two(x), target(me, x)), one=mlp(), two=mlp())
    play.train(net, batches())
