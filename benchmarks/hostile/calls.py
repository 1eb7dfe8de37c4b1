"""Who calls what: threads, modes, wrappers, and parts of a model."""

import contextlib
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows, sgd


@case
def called_in_a_thread(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for number, (x,) in enumerate(batches()):

        def work(x: Tensor = x) -> None:
            torch.manual_seed(1)
            play.backward(mean_square(model(x)), net)

        if number % 2:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        else:
            work()


@case
def backward_in_a_thread(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for (x,) in batches():
        loss = mean_square(model(x))
        thread = threading.Thread(target=play.backward, args=(loss, net))
        thread.start()
        thread.join()


@case
def two_models_in_two_threads(play: Play) -> None:
    nets = [mlp(), mlp()]
    models = [play.model(net) for net in nets]

    def work(number: int) -> None:
        for (x,) in batches():
            mean_square(models[number](x)).backward()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    play.state(*nets)


@case
def one_model_in_two_threads(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    found: list[Any] = [None, None]

    def work(number: int) -> None:
        for x in (rows(8 + number), rows(16)):
            with torch.no_grad():
                found[number] = model(x)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    play.saw(found)
    play.backward(mean_square(model(rows())), net)


@case
def inference_mode_between_steps(play: Play) -> None:
    net = nn.Sequential(mlp(dropout=0.1), nn.BatchNorm1d(WIDTH))
    model = play.model(net)
    for (x,) in batches():
        with torch.inference_mode():
            out = model(x)
        play.saw(out, out.is_inference())
        play.backward(mean_square(model(x)), net)


@case
def inference_tensor_as_input(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for (x,) in batches(3):
        with torch.inference_mode():
            y = x * 2
        try:
            play.backward(mean_square(model(y)), net)
        except RuntimeError:
            play.saw("refused")
        play.backward(mean_square(model(y.clone())), net)


@case
def gradients_are_off_at_times(play: Play) -> None:
    net = mlp(dropout=0.1)
    model = play.model(net)
    for number, (x,) in enumerate(batches(5)):
        with torch.set_grad_enabled(number % 2 == 0):
            out = model(x)
        play.saw(out, out.requires_grad)
        if out.requires_grad:
            play.backward(mean_square(out), net)


@case
def parts_are_called_by_the_loop(play: Play) -> None:
    net = nn.Sequential(mlp(), mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        h = net[0](x)
        out = model(x) if number % 2 else net[1](h)
        play.backward(mean_square(out) + mean_square(h), net)


@case
def forward_is_called_directly(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        play.backward(mean_square(model.forward(x) if number % 2 else model(x)), net)


@case
def compiled_parts_of_a_plain_model(play: Play) -> None:
    net = nn.Sequential(mlp(dropout=0.1), nn.LayerNorm(WIDTH), mlp(dropout=0.1))
    one, two = play.model(net[0]), play.model(net[2])
    optimizer = sgd(net.parameters())
    for (x,) in batches():
        play.backward(mean_square(two(net[1](one(x)))), net)
        optimizer.step()


@case
def distributed_on_one_process(play: Play) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        net = Net(lambda me, x: me.one(x), one=mlp(), two=mlp())
        model = nn.parallel.DistributedDataParallel(play.model(net), find_unused_parameters=True)
        for number, (x,) in enumerate(batches()):
            with model.no_sync() if number % 2 else contextlib.nullcontext():
                mean_square(model(x)).backward()
            play.state(net)
    finally:
        dist.destroy_process_group()


@case
def data_parallel_without_devices(play: Play) -> None:
    net = mlp()
    model = nn.DataParallel(play.model(net))
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)


@case
def subclass_with_its_own_call(play: Play) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def __call__(self, x: Tensor, *args: Any) -> Any:
            return super().__call__(x * 2, *args)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("net"), name)

        def forward(self, x: Tensor) -> Any:
            return self.net(x) + self[0].weight.sum()

        def __getitem__(self, number: int) -> Any:
            return self.net[number]

    net = Own()
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x)), net)


@case
def default_dtype_changes(play: Play) -> None:
    net = Net(lambda me, x: me.net(x) + torch.ones(WIDTH, dtype=torch.get_default_dtype()).float(), net=mlp())
    model = play.model(net)
    try:
        for number, (x,) in enumerate(batches()):
            torch.set_default_dtype(torch.float64 if number % 2 else torch.float32)
            play.backward(mean_square(model(x)), net)
    finally:
        torch.set_default_dtype(torch.float32)
