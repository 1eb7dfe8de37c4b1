"""Transformers: torch's own and hand-written ones, normalizing first or last, however they are defined."""

import random
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from benchmarks.recorder.families.case import Case, classes

_WIDTH, _HEADS, _WORDS = 16, 2, 50
Orders = tuple[str, ...]


def _mask(length: int) -> torch.Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


class _Text(nn.Module):
    """Embeddings of words and positions around a stack; the head may be the table of words."""

    def __init__(self, stack: nn.Module, rng: random.Random, *, two: bool, first: bool) -> None:
        super().__init__()
        self.two, self.tied, self.shared = two, rng.random() < 0.4, rng.random() < 0.5
        self.norms = first and rng.random() < 0.7 and not isinstance(stack, nn.Transformer)
        if rng.random() < 0.5:
            self.stack = stack
        self.words = nn.Embedding(_WORDS, _WIDTH)
        if two and not self.shared:
            self.others = nn.Embedding(_WORDS, _WIDTH)
        if rng.random() < 0.5:
            self.places: nn.Module | None = nn.Embedding(32, _WIDTH)
        else:
            self.places = None
            self.waves = nn.Buffer(torch.randn(32, _WIDTH))
        self.drop = nn.Dropout(0.1)
        if not hasattr(self, "stack"):
            self.stack = stack
        if self.norms:
            self.norm = nn.LayerNorm(_WIDTH)
        if not self.tied:
            self.head = nn.Linear(_WIDTH, _WORDS)

    def embedded(self, table: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        where: Any = self.waves[:length] if self.places is None else self.places(torch.arange(length))
        return cast(torch.Tensor, self.drop(table(tokens) * _WIDTH**0.5 + where))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.two:
            read = self.embedded(self.words, source)
            written = self.embedded(self.words if self.shared else self.others, target)
            mask = _mask(target.shape[1])
            out = self.stack(read, written, tgt_mask=mask)
        else:
            out = self.stack(self.embedded(self.words, target))
        if self.norms:
            out = self.norm(out)
        return nn.functional.linear(out, self.words.weight) if self.tied else self.head(out)


class _Decoder(nn.Module):
    """Torch's decoder alone, reading what is embedded elsewhere."""

    def __init__(self, layer: nn.TransformerDecoderLayer, depth: int, norm: nn.Module | None) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(layer, depth, norm)

    def forward(self, read: torch.Tensor, written: torch.Tensor, tgt_mask: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.decoder(written, read, tgt_mask=tgt_mask))


def _case(stack: nn.Module, rng: random.Random, *, two: bool, first: bool, **notes: object) -> Case:
    model = _Text(stack, rng, two=two, first=first)
    tokens = torch.randint(_WORDS, (3, 7)), torch.randint(_WORDS, (3, 6))
    return classes(model, tokens, rng, first=first, tied=model.tied, shared=model.shared, **notes)


def torch_transformer(rng: random.Random) -> Case:
    """`nn.Transformer`, `nn.TransformerDecoder` or `nn.TransformerEncoder` between embeddings and a head."""
    first, depth, which = rng.random() < 0.5, rng.randint(1, 3), rng.choice(("both", "decoder", "encoder"))
    common: dict[str, Any] = {
        "dim_feedforward": 24, "dropout": rng.choice((0.0, 0.1)), "norm_first": first, "batch_first": True,
        "activation": rng.choice(("relu", "gelu")),
    }  # fmt: skip
    if which == "both":
        return _case(
            nn.Transformer(_WIDTH, _HEADS, depth, rng.randint(1, 3), **common),
            rng, two=True, first=first, which=which,
        )  # fmt: skip
    norm = nn.LayerNorm(_WIDTH) if rng.random() < 0.5 else None
    if which == "decoder":
        layer = nn.TransformerDecoderLayer(_WIDTH, _HEADS, **common)
        return _case(_Decoder(layer, depth, norm), rng, two=True, first=first, which=which)
    block = nn.TransformerEncoderLayer(_WIDTH, _HEADS, **common)
    stack = nn.TransformerEncoder(block, depth, norm, enable_nested_tensor=False)
    return _case(stack, rng, two=False, first=first, which=which)


class _Attention(nn.Module):
    """Attention with four layers; the product is torch's function, or written out."""

    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    drop: nn.Module

    def __init__(self, fused: bool, defined: Orders) -> None:
        super().__init__()
        self.fused = fused
        for name in defined:
            layer = nn.Dropout(0.1) if name == "drop" else nn.Linear(_WIDTH, _WIDTH)
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor, read: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (
            layer(value).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for layer, value in ((self.q, x), (self.k, read), (self.v, read))
        )
        if self.fused:
            out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-2, -1) / (_WIDTH / _HEADS) ** 0.5
            scores = scores if mask is None else scores + mask
            out = torch.softmax(scores, -1) @ v
        out = out.transpose(1, 2).flatten(2)
        return cast(torch.Tensor, self.drop(self.o(out)))


class _Perceptron(nn.Module):
    """Two layers with a function between."""

    def __init__(self, module: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_WIDTH, 24), nn.Linear(24, _WIDTH)
        self.act: Callable[[torch.Tensor], torch.Tensor] = nn.GELU() if module else nn.functional.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.down(self.act(self.up(x))))


class _Layer(nn.Module):
    """One layer of an encoder, or of a decoder that reads."""

    norm1: nn.Module
    norm2: nn.Module
    norm3: nn.Module
    attn: nn.Module
    cross: nn.Module
    mlp: nn.Module

    def __init__(self, make: dict[str, Callable[[], nn.Module]], defined: Orders, first: bool) -> None:
        super().__init__()
        self.first, self.reads = first, "cross" in make
        for name in defined:
            setattr(self, name, make[name]())

    def forward(
        self, x: torch.Tensor, read: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = self.around(x, self.norm1, lambda y: self.attn(y, y, mask))
        if self.reads:
            x = self.around(x, self.norm2, lambda y: self.cross(y, read, None))
        return self.around(x, self.norm3, self.mlp)

    def around(self, x: torch.Tensor, norm: nn.Module, inner: Callable[[Any], Any]) -> torch.Tensor:
        return cast(torch.Tensor, x + inner(norm(x)) if self.first else norm(x + inner(x)))


class _Own(nn.Module):
    """Encoder layers, and decoder layers that read what these made."""

    def __init__(self, encoder: list[nn.Module], decoder: list[nn.Module], first: bool, norms: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        self.norms = norms and first
        if self.norms:
            self.read_norm = nn.LayerNorm(_WIDTH)

    def forward(self, read: torch.Tensor, written: torch.Tensor, tgt_mask: torch.Tensor) -> torch.Tensor:
        for layer in self.encoder:
            read = layer(read)
        if self.norms:
            read = self.read_norm(read)
        for layer in self.decoder:
            written = layer(written, read, tgt_mask)
        return written


def _defined(names: Orders, first: bool, how: str, rng: random.Random) -> Orders:
    """Children in the order in which they run, by kind with norms last, or at random."""
    inner = [name for name in names if not name.startswith("norm")]
    norms = [name for name in names if name.startswith("norm")]
    if how == "run":
        pairs = zip(norms, inner, strict=True)
        return tuple(name for norm, one in pairs for name in ((norm, one) if first else (one, norm)))
    if how == "kinds":
        return (*inner, *norms)
    return tuple(rng.sample(names, len(names)))


def own_transformer(rng: random.Random) -> Case:
    """Hand-written encoder and decoder layers."""
    first, fused, module = (rng.random() < 0.5 for _ in range(3))
    how = rng.choice(("run", "run", "kinds", "shuffled"))
    heads = ("q", "k", "v", "o", "drop") if rng.random() < 0.8 else ("k", "v", "q", "o", "drop")
    make: dict[str, Callable[[], nn.Module]] = {
        "attn": lambda: _Attention(fused, heads), "cross": lambda: _Attention(fused, heads),
        "mlp": lambda: _Perceptron(module),
        **dict.fromkeys(("norm1", "norm2", "norm3"), lambda: nn.LayerNorm(_WIDTH)),
    }  # fmt: skip
    reading = {name: made for name, made in make.items() if name not in ("cross", "norm2")}
    decoder = _defined(("attn", "cross", "mlp", "norm1", "norm2", "norm3"), first, how, rng)
    encoder = tuple(name for name in decoder if name not in ("cross", "norm2"))
    model = _Own(
        [_Layer(reading, encoder, first) for _ in range(rng.randint(1, 3))],
        [_Layer(make, decoder, first) for _ in range(rng.randint(1, 3))],
        first,
        rng.random() < 0.5,
    )
    return _case(model, rng, two=True, first=first, defined=how, fused=fused)
