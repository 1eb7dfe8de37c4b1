"""Families in code of their own, and of torch_geometric: loops, sizes and branches that values decide."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.families.registry import FAMILIES, Family, Given, Made, family, ids, library


def plain(model: nn.Module, *shape: int, classes: int = 10) -> Made:
    """Numbers in, classes out."""

    def inputs(step: int) -> Given:
        return {"x": torch.randn(shape), "y": torch.randint(0, classes, shape[:1])}

    return Made(model.train(), inputs, lambda model, g: functional.cross_entropy(model(g["x"]), g["y"]))


def tokens(model: nn.Module, rows: int = 8, length: int = 96) -> Made:
    """Tokens in, scores of each token out."""

    def loss(model: Any, g: Given) -> Tensor:
        return functional.cross_entropy(model(g["x"]).flatten(0, 1), g["x"].flatten())

    return Made(model.train(), lambda step: {"x": ids(100, rows, length)}, loss)


def _wide(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))


class Mixture(nn.Module):
    """Experts that get the rows that chose them: found one by one, or all rows sorted and split."""

    def __init__(self, width: int, *, by_sorting: bool) -> None:
        super().__init__()
        self.router, self.by_sorting = nn.Linear(width, 4), by_sorting
        self.experts = nn.ModuleList(_wide(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat, out = x.flatten(0, 1), torch.zeros_like(x.flatten(0, 1))
        weight, chosen = self.router(flat).softmax(-1).topk(2)
        if self.by_sorting:
            order = chosen.flatten().argsort(stable=True)
            parts = torch.split(flat[order // 2], chosen.flatten().bincount(minlength=4).tolist())
            made = torch.cat([one(part) for one, part in zip(self.experts, parts, strict=True)])
            return x + out.index_add(0, order // 2, made * weight.flatten()[order, None]).view_as(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            out.index_add_(0, rows, expert(flat[rows]) * weight[rows, slot, None])
        return x + out.view_as(x)


class Steps(nn.Module):
    """A model whose forward is a function of it and its input."""

    def __init__(self, run: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.__dict__["_modules"].update(parts)

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.run(self, *args, **named)


@family("torch")
def padded_encoder() -> Made:
    """Torch's own encoder with a mask of paddings, which it may pack."""

    def run(me: Any, x: Tensor) -> Any:
        return me.out(me.body(me.embed(x), src_key_padding_mask=x > 90))

    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 192, batch_first=True), 2)
    return tokens(Steps(run, embed=nn.Embedding(100, 96), body=body, out=nn.Linear(96, 100)))


@family("torch")
def stochastic_depth() -> Made:
    """Layers dropped by a coin."""

    def run(me: Any, x: Tensor) -> Any:
        for layer in me.layers:
            if float(torch.rand(())) > 0.3:
                x = x + layer(x)
        return me.out(x)

    layers = nn.ModuleList(map(_wide, [64] * 6))
    return plain(Steps(run, layers=layers, out=nn.Linear(64, 10)), 512, 64)


@family("torch")
def deep_equilibrium() -> Made:
    """A fixed point found without gradients, then four steps with them."""

    def run(me: Any, x: Tensor) -> Any:
        with torch.no_grad():
            z, old = torch.zeros_like(x), x
            while (z - old).norm() > 1e-2 * old.norm():
                z, old = 0.5 * torch.tanh(me.layer(z) + x), z
        for _ in range(4):
            z = 0.5 * torch.tanh(me.layer(z) + x)
        return me.out(z)

    return plain(Steps(run, layer=nn.Linear(64, 64), out=nn.Linear(64, 10)), 1024, 64)


@family("torch")
def packed_gru() -> Made:
    def run(me: Any, x: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return me.out(nn.utils.rnn.pad_packed_sequence(me.net(packed)[0], batch_first=True)[0])

    model = Steps(run, net=nn.GRU(48, 64, 2, batch_first=True), out=nn.Linear(64, 8))
    given = lambda step: {"x": torch.randn(8, 48, 48), "lengths": torch.randint(16, 49, (8,))}  # noqa: E731
    return Made(model, given, lambda model, g: model(**g).square().mean())


@family("torch")
def crnn_ctc() -> Made:
    def run(me: Any, x: Tensor) -> Any:
        return me.out(me.net(me.conv(x).permute(2, 0, 1))[0]).log_softmax(-1)

    def inputs(step: int) -> Given:
        lengths = torch.randint(40, 60, (6,))
        return {"x": torch.randn(6, 20, 120), "y": torch.randint(1, 20, (6, 10)), "lengths": lengths}

    def loss(model: Any, g: Given) -> Tensor:
        ends = g["lengths"], torch.full((6,), 10)
        return functional.ctc_loss(model(g["x"]), g["y"], *ends, zero_infinity=True)

    conv = nn.Sequential(nn.Conv1d(20, 48, 5, 2, 2), nn.BatchNorm1d(48), nn.ReLU())
    net = nn.GRU(48, 48, 2, bidirectional=True, dropout=0.1)
    return Made(Steps(run, conv=conv, net=net, out=nn.Linear(96, 20)), inputs, loss)


@family("torch")
def wgan_gp() -> Made:
    """A gradient of a gradient, which is documented as not supported."""

    def loss(model: Any, g: Given) -> Any:
        x = g["x"].requires_grad_()
        score = model(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    net = nn.Sequential(*(_wide(64) for _ in range(4)), nn.Linear(64, 1))
    return Made(net, lambda step: {"x": torch.randn(512, 64)}, loss)


@family("torch")
def sparse_embedding() -> Made:
    """Gradients that are sparse; AdamW takes none, so a hook makes them dense."""
    bag: Any = nn.EmbeddingBag(2000, 64, sparse=True)
    bag.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.to_dense()))
    net = nn.Sequential(bag, *(_wide(64) for _ in range(4)), nn.Linear(64, 10))
    found = plain(net, 512)
    return found._replace(inputs=lambda step: found.inputs(step) | {"x": ids(2000, 512, 12)})


@family("torch")
def jagged_nested() -> Made:
    """Rows of different lengths in one nested tensor."""

    def run(me: Any, rows: list[Tensor]) -> Any:
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        return me.net(x).values().square().mean()

    def inputs(step: int) -> Given:
        return {"rows": [torch.randn(size, 64) for size in torch.randint(20, 60, (16,)).tolist()]}

    return Made(Steps(run, net=nn.Sequential(*map(_wide, [64] * 4))), inputs, lambda net, g: net(g["rows"]))


@family("torch")
def quantisation_aware() -> Made:
    """Weights and activations rounded on the way, with ranges that are observed."""
    quantization = library("torch.ao.quantization")
    net: Any = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)))
    net.qconfig = quantization.get_default_qat_qconfig("x86")
    return plain(nn.Sequential(quantization.prepare_qat(net.train()), nn.Linear(64, 10)), 512, 64)


def _graph(run: Any, num_labels: int, **parts: nn.Module) -> Made:
    def inputs(step: int) -> Given:
        edges = torch.randint(0, 1600, (2, int(torch.randint(6000, 9000, ()))))
        labels = torch.randint(0, 5, (num_labels,))
        return {"x": torch.randn(1600, 48), "edges": edges, "batch": torch.arange(1600) // 50, "y": labels}

    def loss(model: Any, g: Given) -> Tensor:
        return functional.cross_entropy(model(g["x"], g["edges"], g["batch"]), g["y"])

    return Made(Steps(run, **parts).train(), inputs, loss)


def _plain_graph(kind: str, **settings: Any) -> Made:
    net = getattr(library("torch_geometric.nn"), kind)(48, 64, 3, 5, **settings)
    return _graph(lambda me, x, edges, _: me.net(x, edges), 1600, net=net)


@family("torch_geometric")
def top_k_pooling() -> Made:
    """Nodes and edges that scores choose."""
    nets = library("torch_geometric.nn")

    def run(me: Any, x: Tensor, edges: Tensor, batch: Tensor) -> Any:
        x, edges, _, batch, *_ = me.pool(me.one(x, edges).relu(), edges, batch=batch)
        return me.out(nets.global_mean_pool(me.two(x, edges).relu(), batch))

    parts = {"one": nets.SAGEConv(48, 64), "pool": nets.TopKPooling(64, 0.6), "two": nets.SAGEConv(64, 64)}
    return _graph(run, 32, **parts, out=nn.Linear(64, 5))


def _mixed(*, by_sorting: bool) -> Made:
    layers = [Mixture(96, by_sorting=by_sorting) for _ in range(2)]
    return tokens(nn.Sequential(nn.Embedding(100, 96), *layers, nn.Linear(96, 100)))


_LIST: Final[dict[str, tuple[str, Callable[[], Made]]]] = {
    "mlp": ("torch", lambda: plain(nn.Sequential(*map(_wide, [64] * 6), nn.Linear(64, 10)), 512, 64)),
    "experts_in_loops": ("torch", lambda: _mixed(by_sorting=False)),
    "sorted_dispatch": ("torch", lambda: _mixed(by_sorting=True)),
    "gcn": ("torch_geometric", lambda: _plain_graph("GCN", dropout=0.2)),
    "gat": ("torch_geometric", lambda: _plain_graph("GAT", heads=4)),
}
FAMILIES.update({name: Family(make, package) for name, (package, make) in _LIST.items()})
