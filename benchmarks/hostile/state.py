"""Parameters, buffers and modules that are shared, replaced, saved, loaded, or made from others."""

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows, sgd


@case
def tied_embedding(play: Play) -> None:
    table = nn.Embedding(20, WIDTH)
    head = nn.Linear(WIDTH, 20, bias=False)
    head.weight = table.weight
    words = torch.randint(20, (8, 6), generator=torch.Generator().manual_seed(1))
    net = Net(
        lambda me, x: F.cross_entropy(me.head(me.table(x)).flatten(0, 1), x.flatten()), table=table, head=head
    )
    play.train(net, [(words,)] * 4, lambda loss: loss)


@case
def one_module_twice(play: Play) -> None:
    play.train(
        Net(lambda me, x: me.net(me.net(x)) + me.again(x), **(lambda one: {"net": one, "again": one})(mlp())),
        batches(),
    )


@case
def tied_after_compiling(play: Play) -> None:
    net = Net(
        lambda me, x: me.two(me.one(x).relu()), one=nn.Linear(WIDTH, WIDTH), two=nn.Linear(WIDTH, WIDTH)
    )
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        if number == 2:
            net.two.weight = net.one.weight
        play.backward(mean_square(model(x)), net)


@case
def weight_norm_of_old(play: Play) -> None:
    play.train(nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()), batches())


@case
def weight_norm_by_parametrization(play: Play) -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh())
    play.train(net, batches())


@case
def spectral_norm_of_old(play: Play) -> None:
    play.train(nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()), batches())


@case
def spectral_norm_by_parametrization(play: Play) -> None:
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh())
    called = play.train(net, batches())
    if not play.whole:
        net.eval()
        play.backward(mean_square(called(rows())), net)


@case
def orthogonal_weight(play: Play) -> None:
    play.train(nn.Sequential(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), nn.Tanh()), batches(2))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).t()


@case
def parametrization_comes_and_goes(play: Play) -> None:
    net = Net(lambda me, x: me.net(x).tanh(), net=nn.Linear(WIDTH, WIDTH))
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        if number == 1:
            parametrize.register_parametrization(net.net, "weight", Symmetric())
        if number == 3:
            parametrize.remove_parametrizations(net.net, "weight")
        play.backward(mean_square(model(x)), net)


@case
def cached_parametrization(play: Play) -> None:
    net = Net(lambda me, x: me.net(me.net(x)), net=nn.Linear(WIDTH, WIDTH))
    parametrize.register_parametrization(net.net, "weight", Symmetric())
    model = play.model(net)
    for (x,) in batches():
        with parametrize.cached():
            play.backward(mean_square(model(x)), net)


@case
def pruned(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    for number, (x,) in enumerate(batches()):
        if number == 2:
            prune.l1_unstructured(net[0], "weight", 0.5)  # type: ignore[no-untyped-call]
        play.backward(mean_square(model(x)), net)
        optimizer.step()


@case
def state_loaded_between_steps(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    kept = {name: one.clone() for name, one in net.state_dict().items()}
    for number, (x,) in enumerate(batches()):
        play.backward(mean_square(model(x)), net)
        optimizer.step()
        if number == 1:
            play.saw(list(net.load_state_dict(kept)))


@case
def state_assigned_between_steps(play: Play) -> None:
    net = nn.Sequential(mlp(), nn.BatchNorm1d(WIDTH))
    model = play.model(net)
    kept = {name: one.clone() * 2 for name, one in net.state_dict().items()}
    for number, (x,) in enumerate(batches()):
        if number == 2:
            net.load_state_dict(kept, assign=True)
        play.backward(mean_square(model(x)), net)


@case
def state_loaded_between_forward_and_backward(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    kept = {name: one.clone() for name, one in net.state_dict().items()}
    for (x,) in batches():
        loss = mean_square(model(x))
        net.load_state_dict(kept)
        try:
            loss.backward()
        except RuntimeError:
            play.saw("refused")


@case
def data_is_swapped(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        net[0].weight.data = torch.full_like(net[0].weight, 0.01 * number)
        play.backward(mean_square(model(x)), net)


@case
def parameter_is_replaced(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        net[0].weight = nn.Parameter(rows(2 * WIDTH, seed=number))
        play.backward(mean_square(model(x)), net)


@case
def parameter_grows(play: Play) -> None:
    net = Net(lambda me, x: me.table(x), table=nn.Embedding(10, WIDTH))
    model = play.model(net)
    for number in range(4):
        words = torch.arange(10 + number)
        if number:
            more = nn.Embedding(10 + number, WIDTH)
            with torch.no_grad():
                more.weight[: 9 + number] = net.table.weight
            net.table = more
        play.backward(mean_square(model(words)), net)


@case
def parameter_made_in_the_first_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        if me.scale is None:
            me.scale = nn.Parameter(torch.ones(x.shape[1]))
        return me.net(x) * me.scale

    net = Net(run, net=mlp(), scale=None)
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)


@case
def lazy_layers(play: Play) -> None:
    net = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(), nn.LazyLinear(4))
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)


@case
def head_is_replaced(play: Play) -> None:
    net = Net(lambda me, x: me.head(me.body(x)), body=mlp(), head=nn.Linear(WIDTH, 3))
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        if number == 1:
            net.head = nn.Linear(WIDTH, 5)
        if number == 3:
            net.head = nn.Identity()
        play.backward(mean_square(model(x)), net)


@case
def adapter_is_added_and_merged(play: Play) -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.a, self.b = base, nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.base(x) + self.b(self.a(x))
            return found

    net = Net(lambda me, x: me.one(x).tanh(), one=nn.Linear(WIDTH, WIDTH))
    model = play.model(net)
    for number, (x,) in enumerate(batches(6)):
        if number == 1:
            net.one.requires_grad_(False)
            net.one = Adapted(net.one)
        if number == 4:
            one = net.one
            one.base.weight.data += one.b.weight.data @ one.a.weight.data
            net.one = one.base
            net.one.requires_grad_(True)
        play.backward(mean_square(model(x)), net)


@case
def frozen_and_thawed(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches(6)):
        net[0].requires_grad_(number % 3 == 0)
        net[3].bias.requires_grad_(number % 2 == 0)
        play.backward(mean_square(model(x)), net)


@case
def buffer_assigned_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        me.mean = me.mean * 0.9 + 0.1 * x.detach().mean(0)
        return me.net(x - me.mean)

    play.train(Net(run, net=mlp(), mean=torch.zeros(WIDTH)), batches())


@case
def buffer_written_in_the_forward(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        me.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        me.steps += 1
        return me.net(x - me.mean) / me.steps

    play.train(
        Net(run, net=mlp(), mean=torch.zeros(WIDTH), steps=torch.zeros((), dtype=torch.long)), batches()
    )


@case
def codebook_by_averages(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.net(x)
        number = torch.cdist(h.detach(), me.codes).argmin(1)
        picked = F.one_hot(number, 8).float()
        with torch.no_grad():
            me.counts.mul_(0.9).add_(picked.sum(0), alpha=0.1)
            me.codes.copy_(me.codes * 0.9 + 0.1 * picked.t() @ h / (me.counts[:, None] + 1e-3))
        return h + (me.codes[number] - h).detach()

    play.train(Net(run, net=mlp(), codes=rows(8), counts=torch.ones(8)), batches())


@case
def norm_without_running_averages(play: Play) -> None:
    net = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH, momentum=None),
        nn.BatchNorm1d(WIDTH, track_running_stats=False),
    )
    play.train(net, batches())


@case
def norm_in_evaluation_alone(play: Play) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    model = play.model(net)
    for number, (x,) in enumerate(batches(5)):
        net[1].train(number % 2 == 0)
        play.backward(mean_square(model(x)), net)


@case
def copied_between_steps(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for (x,) in batches():
        other = copy.deepcopy(net)
        play.backward(mean_square(model(x)), net)
        play.backward(mean_square(other(x)), other)


@case
def saved_whole_between_steps(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for (x,) in batches(3):
        play.backward(mean_square(model(x)), net)
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
        play.backward(mean_square(other(x)), other)


@case
def names_of_the_state(play: Play) -> None:
    net = nn.Sequential(mlp(), nn.BatchNorm1d(WIDTH))
    play.train(net, batches(2))
    play.saw(net.state_dict(), [name for name, _ in net.named_modules()], repr(net))


@case
def resumed_from_a_file(play: Play) -> None:
    file = io.BytesIO()
    for part in range(2):
        net = mlp(dropout=0.1)
        model = play.model(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
        if part:
            file.seek(0)
            kept = torch.load(file)
            net.load_state_dict(kept["net"])
            optimizer.load_state_dict(kept["optimizer"])
            torch.set_rng_state(kept["random"])
        for (x,) in batches(2):
            play.backward(mean_square(model(x)), net)
            optimizer.step()
        torch.save(
            {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()},
            file,
        )


@case
def dtype_changes_between_steps(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        dtype = (torch.float32, torch.float64, torch.bfloat16, torch.float32)[number]
        net.to(dtype)
        play.backward(mean_square(model(x.to(dtype))), net)


@case
def shared_part_of_a_parameter(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        q, k, v = me.all.view(3, WIDTH, WIDTH).unbind()
        return (x @ q) * (x @ k).sigmoid() + (x @ v)

    play.train(Net(run, all=nn.Parameter(rows(3 * WIDTH) * 0.1)), batches())


@case
def parameters_in_one_memory(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    flat = torch.cat([one.detach().flatten() for one in net.parameters()])
    at = 0
    for one in net.parameters():
        one.data = flat[at : at + one.numel()].view_as(one)
        at += one.numel()
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)
        flat.mul_(0.9)


@case
def gradients_in_one_memory(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    flat = torch.zeros(sum(one.numel() for one in net.parameters()))
    at = 0
    for one in net.parameters():
        one.grad = flat[at : at + one.numel()].view_as(one)
        at += one.numel()
    for (x,) in batches():
        loss = mean_square(model(x))
        loss.backward()
        play.saw(loss, flat)
        optimizer.step()
        flat.zero_()


@case
def lists_and_dicts_of_parameters(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        for one in me.many:
            x = torch.tanh(x @ one)
        return x * me.named["scale"] + me.named["shift"]

    many = nn.ParameterList(nn.Parameter(rows(WIDTH, seed=n)) for n in range(3))
    named = nn.ParameterDict({"scale": torch.ones(WIDTH), "shift": torch.zeros(WIDTH)})
    play.train(Net(run, many=many, named=named), batches())


@case
def module_is_shared_by_two_models(play: Play) -> None:
    body = mlp(dropout=0.1)
    one, two = Net(lambda me, x: me.body(x).sin(), body=body), Net(lambda me, x: me.body(x).cos(), body=body)
    first, second = play.model(one), play.model(two)
    for (x,) in batches():
        play.backward(mean_square(first(x)) + mean_square(second(x)), body)


@case
def child_and_parent_are_compiled(play: Play) -> None:
    net = Net(lambda me, x: me.two(me.one(x)), one=mlp(dropout=0.1), two=mlp())
    child, parent = play.model(net.one), play.model(net)
    for (x,) in batches():
        play.backward(mean_square(parent(x)) + mean_square(child(x)), net)
