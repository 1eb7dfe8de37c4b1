"""Training loops: adversaries, averages, accumulation, several models, several forwards, autocast."""

import copy
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows, sgd


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


@case
def adversaries_in_turns(play: Play) -> None:
    maker, critic = mlp(), mlp()
    make, judge = play.model(maker), play.model(critic)
    first, second = sgd(maker.parameters()), sgd(critic.parameters())
    for (x,) in batches():
        fake = make(x)
        second.zero_grad()
        loss = judge(rows(seed=9)).mean() - judge(fake.detach()).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        judge(make(x)).mean().backward()
        first.step()
        play.saw(loss)
        play.state(maker, critic)


@case
def adversary_sees_the_same_fake_twice(play: Play) -> None:
    maker, critic = mlp(), mlp(dropout=0.1)
    make, judge = play.model(maker), play.model(critic)
    second = sgd(critic.parameters())
    for (x,) in batches():
        fake = make(x)
        second.zero_grad()
        judge(fake.detach()).square().mean().backward()
        second.step()
        for one in critic.parameters():
            one.requires_grad_(False)
        play.backward(judge(fake).mean(), maker)
        for one in critic.parameters():
            one.requires_grad_(True)


@case
def weights_are_clamped(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)
        optimizer.step()
        for one in net.parameters():
            one.data.clamp_(-0.05, 0.05)


@case
def sharpness_aware_steps(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    for (x,) in batches():
        mean_square(model(x)).backward()
        with torch.no_grad():
            moves = [one.grad * 0.05 for one in net.parameters()]
            for one, move in zip(net.parameters(), moves, strict=True):
                one.add_(move)
        net.zero_grad()
        loss = mean_square(model(x))
        loss.backward()
        with torch.no_grad():
            for one, move in zip(net.parameters(), moves, strict=True):
                one.sub_(move)
        play.saw(loss)
        play.state(net)
        optimizer.step()
        net.zero_grad()


@case
def averaged_model(play: Play) -> None:
    net = nn.Sequential(mlp(), nn.BatchNorm1d(WIDTH))
    model, optimizer = play.model(net), sgd(net.parameters())
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)
        optimizer.step()
        average.update_parameters(net)
        play.saw(average(x))
    update_bn([x for (x,) in batches()], average)
    play.state(average)


@case
def average_swapped_in(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    shadow = [one.detach().clone() for one in net.parameters()]
    for (x,) in batches():
        mean_square(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for kept, one in zip(shadow, net.parameters(), strict=True):
            kept.lerp_(one.detach(), 0.5)
            kept_data, one_data = kept.data, one.data
            one.data, kept.data = kept_data, one_data
        with torch.no_grad():
            play.saw(model(x))
        for kept, one in zip(shadow, net.parameters(), strict=True):
            one.data, kept.data = kept.data, one.data
        play.state(net)


@case
def teacher_follows_the_student(play: Play) -> None:
    student = mlp(dropout=0.2)
    teacher = copy.deepcopy(student).requires_grad_(False)
    learn, teach = play.model(student), play.model(teacher)
    optimizer = sgd(student.parameters())
    for (x,) in batches():
        with torch.no_grad():
            target = teach(x)
        play.backward(F.mse_loss(learn(x), target), student)
        optimizer.step()
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), student.parameters(), strict=True):
                one.mul_(0.9).add_(other, alpha=0.1)


@case
def gradients_accumulate(play: Play) -> None:
    net = mlp(dropout=0.1)
    model, optimizer = play.model(net), _adam(net.parameters())
    for number, (x,) in enumerate(batches(6)):
        (mean_square(model(x)) / 3).backward()
        play.state(net)
        if number % 3 == 2:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=False)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


@case
def several_forwards_one_backward(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for _ in range(3):
        losses = [mean_square(model(x)) for (x,) in batches(3)]
        play.backward(torch.stack(losses).sum(), net)


@case
def backwards_in_another_order(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for _ in range(3):
        losses = [mean_square(model(x)) for (x,) in batches(3)]
        for number in (1, 0, 2):
            losses[number].backward()
            play.state(net)


@case
def forwards_without_backward(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    kept = []  # type: ignore[var-annotated]
    for (x,) in batches(6):
        kept = [model(x), *kept[:1]]
        play.saw(kept[0])
    play.backward(mean_square(kept[1]), net)


@case
def evaluation_between_forward_and_backward(play: Play) -> None:
    net = nn.Sequential(mlp(dropout=0.3), nn.BatchNorm1d(WIDTH))
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        net.eval()
        with torch.no_grad():
            play.saw(model(x))
        net.train()
        play.backward(loss, net)


@case
def siamese(play: Play) -> None:
    net = mlp(dropout=0.1)
    model, optimizer = play.model(net), _adam(net.parameters())
    for (x,) in batches():
        far = F.triplet_margin_loss(model(x), model(x + 0.1), model(x.flip(0)))
        play.backward(far, net)
        optimizer.step()


@case
def output_goes_in_again(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        for _ in range(3):
            x = model(x)
        play.backward(mean_square(x), net)


@case
def loss_of_two_heads(play: Play) -> None:
    net = Net(lambda me, x: (me.one(h := me.body(x)), me.two(h)), body=mlp(), one=mlp(), two=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        one, two = model(x)
        if number % 2:
            one.sum().backward(retain_graph=True)
            play.state(net)
            play.backward(two.square().sum(), net)
        else:
            play.backward(one.mean(), net)


@case
def target_net_of_q_learning(play: Play) -> None:
    net = mlp()
    target = copy.deepcopy(net)
    model, optimizer = play.model(net), sgd(net.parameters())
    for number, (x,) in enumerate(batches()):
        with torch.no_grad():
            best = target(x).max(1).values
        q = model(x).gather(1, x[:, :1].abs().long())
        play.backward(F.smooth_l1_loss(q[:, 0], best * 0.9), net)
        optimizer.step()
        if number % 2:
            target.load_state_dict(net.state_dict())


@case
def meta_learning_inner_steps(play: Play) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def run(me: Any, x: Tensor, y: Tensor) -> Any:
        given = dict(me.net.named_parameters())
        for _ in range(2):
            loss = (torch.func.functional_call(me.net, given, (x,)) - y).square().mean()
            grads = torch.autograd.grad(loss, list(given.values()), create_graph=True)
            given = {name: one - 0.1 * grad for (name, one), grad in zip(given.items(), grads, strict=True)}
        return (torch.func.functional_call(me.net, given, (x,)) - y).square().mean()

    play.train(Net(run, net=net), [(x, x[:, :1]) for (x,) in batches(2)])


@case
def queue_of_keys(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        keys = F.normalize(me.net(x), dim=1)
        logits = keys @ me.queue.clone().t()
        with torch.no_grad():
            at = int(me.at)
            me.queue[at : at + 8] = keys[:8].detach()
            me.at[0] = (at + 8) % 64
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    play.train(Net(run, net=mlp(), queue=rows(64), at=torch.zeros(1, dtype=torch.long)), batches())


@case
def variational_sample(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        mean, scale = me.net(x).chunk(2, 1)
        z = torch.distributions.Normal(mean, F.softplus(scale) + 1e-3, validate_args=False).rsample()
        return z.square().mean() + (mean.square() + scale.exp() - scale).mean()

    play.train(Net(run, net=mlp()), batches())


@case
def gumbel(play: Play) -> None:
    net = Net(lambda me, x: me.two(F.gumbel_softmax(me.one(x), tau=0.7, hard=True)), one=mlp(), two=mlp())
    play.train(net, batches())


@case
def depth_drawn_by_python(play: Play) -> None:
    draw = random.Random(3)

    def run(me: Any, x: Tensor) -> Any:
        for layer in me.layers:
            if not me.training or draw.random() < 0.5:
                x = x + layer(x)
        return x

    play.train(Net(run, layers=nn.ModuleList(mlp() for _ in range(3))), batches(5))


@case
def depth_grows(play: Play) -> None:
    def run(me: Any, x: Tensor, depth: int) -> Any:
        for layer in me.layers[:depth]:
            x = x + layer(x)
        return x

    net = Net(run, layers=nn.ModuleList(mlp() for _ in range(3)))
    play.train(net, [(x, 1 + number) for number, (x,) in enumerate(batches(3))])


@case
def autocast_around_forward_and_loss(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    for (x,) in batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mean_square(model(x))
        play.backward(loss, net)
        optimizer.step()


@case
def autocast_inside(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = me.one(x)
            with torch.autocast("cpu", enabled=False):
                h = me.two(h.float())
            return me.three(h)

    play.train(Net(run, one=mlp(), two=mlp(), three=mlp()), batches())


@case
def autocast_around_some_calls(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number % 2 == 1):
            out = model(x)
        play.backward(mean_square(out), net)


@case
def scaled_loss(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for (x,) in batches():
        scaler.scale(mean_square(model(x))).backward()
        scaler.step(optimizer)
        scaler.update()
        play.state(net)
        play.saw(scaler.get_scale())
        optimizer.zero_grad()


@case
def closure_of_lbfgs(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    x = rows()

    def closure() -> Any:
        optimizer.zero_grad()
        loss = mean_square(model(x))
        loss.backward()
        return loss

    for _ in range(2):
        play.saw(optimizer.step(closure))  # type: ignore[no-untyped-call]
        play.state(net)


@case
def hidden_state_is_carried(play: Play) -> None:
    net = nn.GRU(WIDTH, WIDTH, batch_first=True)
    model, optimizer = play.model(net), sgd(net.parameters())
    hidden = None
    for number in range(4):
        out, hidden = model(rows(4, 6, WIDTH, seed=number), hidden)
        hidden = hidden.detach()
        play.backward(mean_square(out), net)
        optimizer.step()


@case
def hidden_state_is_kept_on_the_model(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        me.hidden = torch.tanh(me.net(x) + (0 if me.hidden is None else me.hidden.detach()))
        return me.hidden

    play.train(Net(run, net=mlp(), hidden=None), batches())


@case
def distillation_with_a_frozen_part(play: Play) -> None:
    net = Net(lambda me, x: me.head(me.body(x).detach()), body=mlp().requires_grad_(False), head=mlp())
    play.train(net, batches())


@case
def learning_rates_and_groups_change(play: Play) -> None:
    net = Net(lambda me, x: me.two(me.one(x)), one=mlp(), two=mlp())
    model = play.model(net)
    optimizer = torch.optim.AdamW(net.one.parameters(), lr=1e-2, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for number, (x,) in enumerate(batches()):
        play.backward(mean_square(model(x)), net)
        optimizer.step()
        schedule.step()
        if number == 1:
            optimizer.add_param_group({"params": list(net.two.parameters())})


@case
def only_losses_below_a_limit(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    for number, (x,) in enumerate(batches(6)):
        loss = mean_square(model(x * (1 + number % 2)))
        if loss.item() > 0.05:
            play.backward(loss, net)
            optimizer.step()
        play.saw(loss)


@case
def samples_of_an_energy_model(play: Play) -> None:
    net = mlp()
    model, optimizer = play.model(net), sgd(net.parameters())
    for (x,) in batches(3):
        sample = torch.randn(32, WIDTH).requires_grad_()
        for _ in range(3):
            (grad,) = torch.autograd.grad(model(sample).sum(), sample)
            sample = (sample.detach() - 0.1 * grad).requires_grad_()
        play.backward(model(x).mean() - model(sample.detach()).mean(), net)
        optimizer.step()


@case
def adversarial_input(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches():
        x = x.clone().requires_grad_()
        mean_square(model(x)).backward()
        assert x.grad is not None
        net.zero_grad()
        play.backward(mean_square(model((x + 0.1 * x.grad.sign()).detach())), net)


@case
def mixed_up_rows(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        share = torch.distributions.Beta(0.4, 0.4).sample()
        x = x * share + x[torch.randperm(len(x))] * (1 - share)
        return me.net(x)

    play.train(Net(run, net=mlp()), batches())
