"""Inputs and outputs: containers, numbers, sizes, dtypes, layouts."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn

from benchmarks.hostile.case import WIDTH, Net, Play, batches, case, mean_square, mlp, rows


def _words(number: int = 20, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(number, shape or (8, 6), generator=torch.Generator().manual_seed(seed))


@dataclass
class Output:
    loss: Tensor
    hidden: Tensor | None = None


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@case
def dict_in_and_out(play: Play) -> None:
    net = Net(
        lambda me, given: {"loss": mean_square(me.net(given["x"] * given["scale"])), "none": None}, net=mlp()
    )
    given = [({"x": x, "scale": 0.5 + number},) for number, (x,) in enumerate(batches())]
    play.train(net, given, lambda found: found["loss"])


@case
def dataclass_out(play: Play) -> None:
    net = Net(lambda me, x: Output(mean_square(h := me.net(x)), h.detach()), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        found = model(x)
        play.saw(type(found).__name__, found.hidden)
        play.backward(found.loss, net)


@case
def named_tuple_and_lists_out(play: Play) -> None:
    net = Net(lambda me, x: Pair(me.one(x), [None, (me.two(x), 3)]), one=mlp(), two=mlp())  # type: ignore[arg-type]
    model = play.model(net)
    for (x,) in batches():
        found = model(x)
        play.saw(type(found).__name__)
        play.backward(mean_square(found.left) + mean_square(found.right[1][0]) * found.right[1][1], net)


@case
def ordered_dict_of_tensors(play: Play) -> None:
    net = Net(lambda me, given: OrderedDict((k, me.net(v)) for k, v in given.items()), net=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        found = model(OrderedDict(zip("ab" if number % 2 else "ba", (x, x.sin()), strict=True)))
        play.saw(type(found).__name__, list(found))
        play.backward(mean_square(found["a"]), net)


@case
def flags_and_defaults(play: Play) -> None:
    def run(me: Any, x: Tensor, *, scale: float = 1.0, kind: str = "sin", both: bool = False) -> Any:
        h = getattr(torch, kind)(me.net(x)) * scale
        return (h, x) if both else h

    net = Net(run, net=mlp())
    model = play.model(net)
    every: list[dict[str, Any]] = [{}, {"scale": 2.0}, {"kind": "cos"}, {"both": True}, {"scale": 3}, {}]
    for (x,), kwargs in zip(batches(6), every, strict=True):
        found = model(x, **kwargs)
        play.backward(mean_square(found[0] if isinstance(found, tuple) else found), net)


@case
def step_number_as_input(play: Play) -> None:
    net = Net(lambda me, x, t: me.net(x + t) * (0.5**t), net=mlp())
    play.train(net, [(x, number) for number, (x,) in enumerate(batches(6))])


@case
def temperature_as_input(play: Play) -> None:
    net = Net(lambda me, x, t: F.log_softmax(me.net(x) / t, 1).square(), net=mlp())
    play.train(net, [(x, 1.0 / (1 + number)) for number, (x,) in enumerate(batches(6))])


@case
def number_of_numpy_as_input(play: Play) -> None:
    net = Net(lambda me, x, t: me.net(x) * t, net=mlp())
    play.train(net, [(x, np.float64(1.5 + number)) for number, (x,) in enumerate(batches())])


@case
def array_of_numpy_as_input(play: Play) -> None:
    net = Net(lambda me, x: me.net(torch.from_numpy(x)), net=mlp())
    play.train(net, [(x.numpy(),) for (x,) in batches()])


@case
def generator_as_input(play: Play) -> None:
    net = Net(lambda me, parts: torch.stack([me.net(part) for part in parts]).sum(0), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        play.backward(mean_square(model(x * n for n in range(3))), net)


@case
def iterator_as_input(play: Play) -> None:
    net = Net(lambda me, parts: me.net(next(parts)) * 2, net=mlp())
    model = play.model(net)
    parts = iter([x for (x,) in batches(5)])
    for _ in range(3):
        play.backward(mean_square(model(parts)), net)
    play.saw(len(list(parts)))


@case
def lists_of_other_lengths(play: Play) -> None:
    net = Net(lambda me, parts: torch.cat([me.net(one) for one in parts]), net=mlp())
    play.train(net, [([x[: 4 + n] for n in range(number)],) for number, (x,) in enumerate(batches(4), 1)])


@case
def random_generator_as_input(play: Play) -> None:
    net = Net(lambda me, x, g: me.net(x + torch.randn(x.shape, generator=g)), net=mlp())
    model, generator = play.model(net), torch.Generator().manual_seed(3)
    for (x,) in batches():
        play.backward(mean_square(model(x, generator)), net)
    play.saw(generator.get_state())


@case
def batch_of_nothing(play: Play) -> None:
    net = mlp()
    model = play.model(net)
    for size in (8, 0, 8, 0):
        play.backward(model(rows(max(size, 1))[:size]).sum(), net)


@case
def last_batch_is_smaller(play: Play) -> None:
    net = nn.Sequential(mlp(dropout=0.1), nn.BatchNorm1d(WIDTH))
    play.train(net, [(rows(size, seed=n),) for n, size in enumerate((32, 32, 7, 32, 7))])


@case
def batch_of_one(play: Play) -> None:
    play.train(mlp(), [(rows(size, seed=n),) for n, size in enumerate((4, 1, 4, 1, 2))])


@case
def one_row_without_batch(play: Play) -> None:
    play.train(mlp(), [(rows(4),), (rows(4)[0],), (rows(4),)])


@case
def scalar_tensor_as_input(play: Play) -> None:
    net = Net(lambda me, x, t: me.net(x) * t, net=mlp())
    model = play.model(net)
    for number, (x,) in enumerate(batches()):
        scale = torch.tensor(1.0 + number, requires_grad=True)
        play.backward(mean_square(model(x, scale)), net)
        play.saw(scale.grad)


@case
def spectrum(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        found = torch.fft.rfft(me.net(x))
        return torch.fft.irfft(found * me.filter).real + found.abs().mean()

    play.train(Net(run, net=mlp(), filter=nn.Parameter(torch.ones(WIDTH // 2 + 1))), batches())


@case
def complex_parameters(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        z = torch.complex(x, x.sin()) @ me.weight
        return (z.conj() * z).real + torch.view_as_real(z).sum(-1)

    weight = nn.Parameter(torch.complex(rows(WIDTH), rows(WIDTH, seed=1)) * 0.1)
    play.train(Net(run, weight=weight), batches())


@case
def complex_outputs(play: Play) -> None:
    net = Net(lambda me, x: torch.polar(me.net(x).abs(), x), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        out = model(x)
        play.saw(out)
        play.backward(out.abs().mean() + out.conj().imag.mean(), net)


@case
def padded_embedding(play: Play) -> None:
    net = Net(lambda me, x: me.table(x).sum(1).tanh(), table=nn.Embedding(20, WIDTH, padding_idx=0))
    play.train(net, [(_words(seed=n),) for n in range(4)])


@case
def sparse_embedding(play: Play) -> None:
    net = Net(lambda me, x: me.table(x).sum(1).tanh(), table=nn.Embedding(20, WIDTH, sparse=True))
    model = play.model(net)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), lr=0.1)
    for number in range(4):
        loss = mean_square(model(_words(seed=number)))
        loss.backward()
        play.saw(loss, net.table.weight.grad.is_sparse, net.table.weight.grad)
        optimizer.step()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        play.saw(net.table.weight)


@case
def embedding_with_a_norm(play: Play) -> None:
    net = Net(lambda me, x: me.table(x).tanh(), table=nn.Embedding(20, WIDTH, max_norm=1.0))
    play.train(net, [(_words(seed=n),) for n in range(4)])


@case
def bags_of_words(play: Play) -> None:
    net = Net(lambda me, x, at: me.table(x, at), table=nn.EmbeddingBag(20, WIDTH, mode="mean"))
    play.train(net, [(_words(20, 9 + n), torch.tensor([0, 2, 2 + n])) for n in range(4)])


@case
def rows_chosen_by_a_mask(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = me.one(x)
        return me.two(h[h[:, 0] > 0]).sum() + h.mean()

    play.train(Net(run, one=mlp(), two=mlp()), batches())


@case
def unique_rows(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        found, inverse = torch.unique(x, return_inverse=True)
        return me.table(found)[inverse].tanh()

    play.train(Net(run, table=nn.Embedding(20, WIDTH)), [(_words(seed=n),) for n in range(4)])


@case
def input_is_the_output(play: Play) -> None:
    net = Net(lambda me, x: (x, me.net(x), x), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        one, out, two = model(x)
        play.saw(one is x, two is x)
        play.backward(mean_square(out + one), net)


@case
def parameter_is_the_output(play: Play) -> None:
    net = Net(lambda me, x: (me.net(x), me.net[0].weight, me.net[0].bias[2:]), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        out, weight, part = model(x)
        play.backward(mean_square(out) + weight.abs().sum() + part.sum(), net)


@case
def one_output_twice(play: Play) -> None:
    net = Net(lambda me, x: (h := me.net(x), h), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        one, two = model(x)
        play.saw(one is two)
        play.backward((one * 2 + two).square().mean(), net)


@case
def no_output(play: Play) -> None:
    def run(me: Any, x: Tensor, out: list[Tensor]) -> None:
        out.append(me.net(x))

    net = Net(run, net=mlp())
    model = play.model(net)
    for (x,) in batches():
        found: list[Tensor] = []
        play.saw(model(x, found))
        play.backward(mean_square(found[0]), net)


@case
def output_without_gradient(play: Play) -> None:
    net = Net(lambda me, x: (h := me.net(x), h.argmax(1), h.detach(), h.max().item() > 0, 7), net=mlp())
    model = play.model(net)
    for (x,) in batches():
        out, best, plain, positive, number = model(x)
        play.saw(best, plain, best.requires_grad, plain.requires_grad, positive, number)
        play.backward(mean_square(out), net)


@case
def left_early(play: Play) -> None:
    def run(me: Any, x: Tensor | None, *, only: str = "") -> Any:
        if x is None:
            return None
        if only == "same":
            return x
        h = me.one(x)
        return h if only else me.two(h)

    net = Net(run, one=mlp(), two=mlp())
    model = play.model(net)
    for (x,), only in zip(batches(4), ("", "first", "same", ""), strict=True):
        play.saw(model(None))
        out = model(x, only=only)
        if out.requires_grad:
            play.backward(mean_square(out), net)


@case
def packed_sequences(play: Play) -> None:
    def run(me: Any, x: Tensor, lengths: Tensor) -> Any:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = rnn.pad_packed_sequence(me.net(packed)[0], batch_first=True)
        return out

    net = Net(run, net=nn.LSTM(WIDTH, WIDTH, batch_first=True))
    play.train(net, [(rows(3, 6, WIDTH), torch.tensor([6, 2 + n, 1])) for n in range(3)])


@case
def nested_tensors(play: Play) -> None:
    def run(me: Any, *parts: Tensor) -> Any:
        nested = torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)
        return torch.cat([one.square().mean()[None] for one in me.net(nested).unbind()])

    play.train(Net(run, net=nn.Linear(WIDTH, WIDTH)), [(rows(3 + n), rows(5)) for n in range(3)])


@case
def einsum_and_reshapes(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        x = x.unflatten(1, (4, 4)).permute(2, 0, 1).reshape(4, -1, 2, 2).movedim(1, 0).contiguous()  # type: ignore[no-untyped-call]
        h = torch.einsum("bcij,cd->bdij", x, me.mix).flatten(1)
        return me.net(h.view(-1, WIDTH).roll(1, 0))

    play.train(Net(run, net=mlp(), mix=nn.Parameter(rows(4, 4))), batches())


@case
def scattered_and_gathered(play: Play) -> None:
    def run(me: Any, x: Tensor, at: Tensor) -> Any:
        h = me.one(x)
        out = torch.zeros(8, WIDTH).index_add(0, at, h)
        out = out.scatter_reduce(0, at[:, None].expand(-1, WIDTH), h, "amax")
        return me.two(out[at] + F.one_hot(at, WIDTH))

    play.train(
        Net(run, one=mlp(), two=mlp()), [(x, _words(8, 32, seed=n)) for n, (x,) in enumerate(batches())]
    )


@case
def attention_with_masks(play: Play) -> None:
    net = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
    model = play.model(net)
    for number in range(4):
        padding = torch.zeros(2, 8, dtype=torch.bool)
        padding[:, 8 - number :] = True
        mask = nn.Transformer.generate_square_subsequent_mask(8) if number % 2 else None
        out = model(
            rows(2, 8, WIDTH), src_mask=mask, src_key_padding_mask=None if mask is not None else padding
        )
        play.backward(mean_square(out), net)


@case
def pictures(play: Play) -> None:
    def run(me: Any, x: Tensor) -> Any:
        h = F.pixel_shuffle(me.one(x).relu(), 2)
        grid = F.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3), list(h.shape), align_corners=False)
        h = F.grid_sample(h, grid, align_corners=False)
        return me.two(F.interpolate(h, scale_factor=0.5, mode="bilinear")).mean((2, 3))

    net = Net(run, one=nn.Conv2d(3, 16, 3, padding=1), two=nn.ConvTranspose2d(4, 3, 2, stride=2))
    play.train(net, [(rows(2, 3, 8, 8, seed=n),) for n in range(3)])


@case
def ctc_loss(play: Play) -> None:
    def run(me: Any, x: Tensor, y: Tensor) -> Any:
        scores = F.log_softmax(me.net(x), 2).transpose(0, 1)
        return F.ctc_loss(scores, y, [8, 8], [3, 2])  # type: ignore[arg-type]

    play.train(
        Net(run, net=mlp()),
        [(rows(2, 8, WIDTH, seed=n), _words(15, 2, 3) + 1) for n in range(3)],
        lambda x: x,
    )


@case
def labels_that_are_ignored(play: Play) -> None:
    net = Net(
        lambda me, x, y: F.cross_entropy(me.net(x), y, ignore_index=-100, label_smoothing=0.1), net=mlp()
    )
    labels = [torch.where(y > 8, -100, y) for y in (_words(16, 32, seed=n) for n in range(4))]
    play.train(net, [(x, y) for (x,), y in zip(batches(), labels, strict=True)], lambda loss: loss)
