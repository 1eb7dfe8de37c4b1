"""Gradients of other kinds: by `torch.autograd.grad`, twice, of functions of the user, by `torch.func`."""

from typing import Any

import torch
import torch.autograd.graph
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows


@case
def gradients_by_autograd_grad(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        play.saw(loss, torch.autograd.grad(loss, list(net.parameters())))


@case
def gradients_of_the_input_alone(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        x.requires_grad_()
        play.saw(torch.autograd.grad(model(x).sum(), x), *(one.grad for one in net.parameters()))


@case
def gradient_penalty(play: Play) -> None:
    net = Net(lambda me, x: me.net(x).tanh().sum(1), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        out = model(x.requires_grad_())
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        play.backward((grad.norm(dim=1) - 1).square().mean() + out.mean(), net)


@case
def hessian_times_vector(play: Play) -> None:
    net = mlp()
    model, parameters = play.model(net), list(net.parameters())
    for (x,) in batches(2):
        grads = torch.autograd.grad(mean_square(model(x)), parameters, create_graph=True)
        play.saw(torch.autograd.grad([one.sum() for one in grads], parameters, allow_unused=True))


@case
def backward_twice_with_retained_graph(play: Play) -> None:
    net = mlp(dropout=0.2)
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        out.sum().backward(retain_graph=True)
        play.state(net)
        play.backward(mean_square(out), net)


@case
def backward_twice_is_refused(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        play.backward(loss, net)
        try:
            loss.backward()
        except RuntimeError:
            play.saw("refused")


@case
def backward_of_several_outputs(play: Play) -> None:
    net = Net(lambda me, x: (me.one(x), me.two(x)), one=mlp(), two=mlp())
    model = play.model(net)
    for (x,) in batches():
        one, two = model(x)
        torch.autograd.backward([one, two], [torch.ones_like(one), two.detach()])
        play.state(net)


@case
def backward_into_some_parameters(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        mean_square(model(x)).backward(inputs=[net[0].weight, net[3].bias])
        play.state(net)


@case
def unused_gradients_are_none(play: Play) -> None:
    net = Net(lambda me, x: me.one(x), one=mlp(), two=mlp())
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        play.saw(torch.autograd.grad(loss, list(net.parameters()), allow_unused=True))


@case
def gradient_of_some_rows(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        out.backward(torch.eye(32, 16))
        play.state(net)
        play.backward(model(x)[:3].sum(), net)


@case
def gradients_in_a_batch(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    x = rows(4)
    out = model(x.requires_grad_()).sum(0)
    (found,) = torch.autograd.grad(out, x, torch.eye(WIDTH), is_grads_batched=True)
    play.saw(found)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() < 1)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -ctx.factor * grads[0], None


@case
def own_function(play: Play) -> None:
    play.train(Net(lambda me, x: me.two(Round.apply(me.one(x))), one=mlp(), two=mlp()), batches())  # type: ignore[no-untyped-call]


@case
def reversed_gradients(play: Play) -> None:
    net = Net(lambda me, x, f: me.two(Reverse.apply(me.one(x), f)), one=mlp(), two=mlp())  # type: ignore[no-untyped-call]
    play.train(net, [(x, 0.1 * number) for number, (x,) in enumerate(batches())])


@case
def straight_through(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.one(x)
        return me.two(h + (h.round() - h).detach())

    play.train(Net(run, one=mlp(), two=mlp()), batches())


@case
def no_gradients_inside(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        with torch.no_grad():
            target = me.one(x)
        return F.mse_loss(me.two(x), target)

    play.train(Net(run, one=mlp(), two=mlp()), batches())


@case
def gradients_inside_of_none(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        with torch.enable_grad():
            return me.net(x)

    net = Net(run, net=mlp())
    model = play.model(net)
    for (x,) in batches():
        with torch.no_grad():
            out = model(x)
        play.saw(out.requires_grad)
        play.backward(mean_square(out), net)


@case
def forces_of_an_energy(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = me.net(x).tanh().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy * 0.01 + force.square().mean()

    play.train(Net(run, net=mlp()), batches(2))


@case
def anomalies_are_watched(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    with torch.autograd.set_detect_anomaly(True):
        for (x,) in batches(2):
            play.backward(mean_square(model(x)), net)


@case
def samples_one_by_one(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    parameters = dict(net.named_parameters())

    def loss(given: Any, row: Tensor) -> Any:
        return torch.func.functional_call(model if model is net else net, given, (row,)).square().mean()

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, rows(8))
    play.saw(*grads.values())
    play.backward(mean_square(model(rows(8))), net)


@case
def called_with_other_parameters(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        others = {name: (one * 0.9) for name, one in net.named_parameters()}
        out = torch.func.functional_call(net, others, (x,))
        play.backward(mean_square(out) + mean_square(model(x)), net)


@case
def jacobian_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        return torch.func.vmap(torch.func.jacrev(me.net))(x).square().sum((1, 2)).mean()

    play.train(Net(run, net=nn.Sequential(nn.Linear(4, 4), nn.Tanh())), [(rows(8, 4),)] * 3)


@case
def forward_mode_around(play: Play) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    model = play.model(net)
    play.backward(mean_square(model(rows())), net)
    play.saw(torch.func.jvp(lambda x: model(x), (rows(),), (rows(seed=1),)))
