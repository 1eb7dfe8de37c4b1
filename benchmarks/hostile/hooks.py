"""Checkpoints, hooks, and saved tensors that are packed."""

from typing import Any

import torch
import torch.autograd.graph
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, sgd


@case
def checkpoint_with_dropout(play: Play) -> None:
    net = Net(lambda me, x: checkpoint(me.net, x, use_reentrant=False), net=mlp(dropout=0.3))
    play.train(net, batches())


@case
def checkpoint_reentrant(play: Play) -> None:
    net = Net(lambda me, x: checkpoint(me.net, me.first(x), use_reentrant=True),
              net=mlp(dropout=0.3), first=nn.Linear(WIDTH, WIDTH))  # fmt: skip
    play.train(net, batches())


@case
def checkpoint_in_checkpoint(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        def inner(h: Tensor) -> Any:
            return checkpoint(me.two, me.one(h).tanh(), use_reentrant=False)

        return checkpoint(inner, x, use_reentrant=False)

    play.train(Net(run, one=mlp(dropout=0.1), two=mlp(dropout=0.1)), batches())


@case
def checkpoint_of_a_sequence(play: Play) -> None:
    net = Net(lambda me, x: checkpoint_sequential(me.net, 2, x, use_reentrant=False), net=mlp(depth=4))  # type: ignore[no-untyped-call]
    play.train(net, batches())


@case
def checkpoint_without_random_state(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        return checkpoint(me.net, x, use_reentrant=False, preserve_rng_state=False)

    play.train(Net(run, net=mlp()), batches())


@case
def checkpoint_with_batch_norm(play: Play) -> None:
    body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    net = Net(lambda me, x: checkpoint(me.net, x, use_reentrant=False), net=body)
    play.train(net, batches())


@case
def checkpoint_with_keywords(play: Play) -> None:
    def block(h: Tensor, scale: float, *, layer: Any, shift: Tensor) -> Any:
        return layer(h) * scale + shift

    def run(me: Any, x: Tensor) -> Any:
        return checkpoint(block, x, 0.5, layer=me.net, shift=x.sin(), use_reentrant=False)

    play.train(Net(run, net=mlp()), batches())


@case
def checkpoint_stopped_late(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            return checkpoint(me.net, x, use_reentrant=False)

    play.train(Net(run, net=mlp(dropout=0.2)), batches())


@case
def checkpoint_around_the_model(play: Play) -> None:
    net = mlp(dropout=0.3)
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(checkpoint(model, x.requires_grad_(), use_reentrant=False)), net)
        play.saw(x.grad)


@case
def checkpoint_with_a_policy(play: Play) -> None:
    def context() -> Any:
        return torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])  # type: ignore[no-untyped-call]

    def run(me: Any, x: Tensor) -> Any:
        return checkpoint(me.net, x, use_reentrant=False, context_fn=context)

    play.train(Net(run, net=mlp()), batches())


@case
def saved_on_cpu_around(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for (x,) in batches():
        with torch.autograd.graph.save_on_cpu():
            loss = mean_square(model(x))
        play.backward(loss, net)


@case
def saved_tensors_packed_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
            return me.net(x).sin()

    play.train(Net(run, net=mlp()), batches())


@case
def saved_tensors_counted_around(play: Play) -> None:
    net, seen = mlp(), []

    def pack(one: Tensor) -> Tensor:
        seen.append(one.numel())
        return one * 2

    model = play.model(net)
    for (x,) in batches():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one / 2):
            loss = mean_square(model(x))
        play.backward(loss, net)
    play.saw(bool(seen))


@case
def forward_hook_changes_the_output(play: Play) -> None:
    net = mlp()
    net[1].register_forward_hook(lambda _m, _a, output: output * 0.5)
    play.train(net, batches())


@case
def forward_pre_hook_changes_the_input(play: Play) -> None:
    net = mlp()
    net[3].register_forward_pre_hook(lambda _m, args: (args[0] + 1,))
    net.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))
    play.train(net, batches())


@case
def hook_on_the_model_sees_the_output(play: Play) -> None:
    net, seen = mlp(), list[float]()
    net.register_forward_hook(lambda _m, _a, output: seen.append(output.detach().sum().item()))
    play.train(net, batches())
    play.saw(seen)


@case
def backward_hook_scales_gradients(play: Play) -> None:
    net = mlp()
    net[2].register_full_backward_hook(lambda _m, grads, _o: tuple(one * 0.5 for one in grads))
    play.train(net, batches())


@case
def backward_hook_of_the_whole_model(play: Play) -> None:
    net, seen = mlp(), list[Any]()
    net.register_full_backward_hook(lambda _m, grads, outs: seen.append((len(grads), outs[0].sum().item())))
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x.requires_grad_())), net)
    play.saw(seen)


@case
def backward_pre_hook(play: Play) -> None:
    net = mlp()
    net[3].register_full_backward_pre_hook(lambda _m, grads: (grads[0].clamp(-1e-3, 1e-3),))
    play.train(net, batches())


@case
def gradient_hook_of_a_parameter(play: Play) -> None:
    net = mlp()
    net[0].weight.register_hook(lambda grad: grad * 3)
    play.train(net, batches())


@case
def optimizer_in_the_backward(play: Play) -> None:
    net = mlp()
    one_each = {one: sgd([one]) for one in net.parameters()}

    def update(one: Tensor) -> None:
        one_each[one].step()
        one_each[one].zero_grad()

    for one in net.parameters():
        one.register_post_accumulate_grad_hook(update)
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        loss.backward()
        play.saw(loss, *net.parameters())


@case
def gradient_hook_inside_of_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.one(x)
        h.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        return me.two(h)

    play.train(Net(run, one=mlp(), two=mlp()), batches())


@case
def gradient_hook_that_records(play: Play) -> None:
    seen = list[float]()

    def run(me: Any, x: Tensor) -> Any:
        h = me.one(x)
        if h.requires_grad:
            h.register_hook(lambda grad: seen.append(grad.abs().sum().item()))
        return me.two(h)

    play.train(Net(run, one=mlp(), two=mlp()), batches())
    play.saw(seen)


@case
def gradient_hook_of_the_output(play: Play) -> None:
    net, seen = mlp(), list[float]()
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        out.register_hook(lambda grad: grad * 2)
        out.register_hook(lambda grad: seen.append(grad.sum().item()))
        play.backward(mean_square(out), net)
    play.saw(seen)


@case
def retained_gradient_of_an_output(play: Play) -> None:
    net = Net(lambda me, x: (h := me.one(x), me.two(h)), one=mlp(), two=mlp())
    model = play.model(net)
    for (x,) in batches():
        hidden, out = model(x)
        hidden.retain_grad()
        play.backward(mean_square(out), net)
        play.saw(hidden.grad)


@case
def retained_gradient_kept_on_the_model(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        me.hidden = me.one(x)
        me.hidden.retain_grad()
        return me.two(me.hidden)

    net = Net(run, one=mlp(), two=mlp())
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)
        play.saw(net.hidden.grad)


@case
def hook_for_every_module(play: Play) -> None:
    seen = list[str]()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, _a, _o: seen.append(type(module).__name__)
    )
    try:
        net = mlp()
        play.train(net, batches(2))
    finally:
        handle.remove()
    play.saw("GELU" in seen)


@case
def hook_comes_and_goes(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        handle = net[1].register_forward_hook(lambda _m, _a, o: o * 2) if number % 2 else None
        play.backward(mean_square(model(x)), net)
        if handle is not None:
            handle.remove()


@case
def features_by_hook(play: Play) -> None:
    net, features = mlp(), dict[str, Tensor]()
    net[1].register_forward_hook(lambda _m, _a, output: features.update(middle=output))
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        play.backward(mean_square(out) + features["middle"].abs().mean(), net)


@case
def hook_with_keywords(play: Play) -> None:
    net = Net(lambda me, x, *, scale: me.net(x) * scale, net=mlp())
    net.register_forward_pre_hook(
        lambda _m, args, kwargs: (args, {"scale": kwargs["scale"] * 2}), with_kwargs=True
    )
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        play.backward(mean_square(model(x, scale=float(number))), net)


@case
def hook_of_many_gradients(play: Play) -> None:
    net, seen = mlp(), list[int]()
    torch.autograd.graph.register_multi_grad_hook(
        list(net.parameters()), lambda grads: seen.append(sum(one is not None for one in grads))
    )
    play.train(net, batches())
    play.saw(seen)


@case
def hook_that_raises(play: Play) -> None:
    net, number = mlp(), [0]

    def hook(grad: Tensor) -> Tensor:
        number[0] += 1
        if number[0] == 2:
            raise ZeroDivisionError("of the user")
        return grad

    net[0].weight.register_hook(hook)
    model = play.model(net)
    for (x,) in batches():
        try:
            play.backward(mean_square(model(x)), net)
        except ZeroDivisionError as error:
            play.saw(str(error))
            net.zero_grad()
