"""Alignment of names with module trees: orders that differ from definitions, lists, shared children."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import Module
from tightrope_trace.align import align
from tightrope_trace.prior import moves, order_penalty, units_of

Spec = list[tuple[str, str, "Spec"]]


def tree(spec: Spec) -> list[Module]:
    """Module rows of nested (name, class, children)."""
    rows = [Module("", "Net")]

    def add(below: Spec, parent: int) -> None:
        for name, kind, children in below:
            path = f"{rows[parent].path}.{name}".lstrip(".")
            rows.append(Module(path, kind, parent))
            add(children, len(rows) - 1)

    add(spec, 0)
    return rows


def leaves(*pairs: tuple[str, str]) -> Spec:
    return [(name, kind, []) for name, kind in pairs]


def owners(rows: list[Module], ops: list[tuple[str, str]], *, native: bool = True) -> list[str]:
    found = align([f"aten::{op}" for op, _ in ops], rows, native=native)
    return [rows[position].path for position in found]


def decoder(num_blocks: int) -> tuple[list[Module], list[tuple[str, str]]]:
    """Blocks that normalize before, defined in another order than they run in, and a norm at the end."""
    attention = leaves(*((f"{name}_proj", "Linear") for name in "kvqo"))
    perceptron = leaves(("gate", "Linear"), ("up", "Linear"), ("down", "Linear"), ("act", "SiLUActivation"))
    block: Spec = [
        ("attn", "Attention", attention),
        ("mlp", "Perceptron", perceptron),
        *leaves(("input_norm", "LayerNorm"), ("post_norm", "LayerNorm")),
    ]
    rows = tree(
        [
            ("embed", "Embedding", []),
            ("layers", "ModuleList", [(str(k), "Layer", block) for k in range(num_blocks)]),
            *leaves(("norm", "LayerNorm"), ("head", "Linear")),
        ]
    )
    ops = [("embedding", "embed")]
    for k in range(num_blocks):
        at = f"layers.{k}"
        ops += [("layer_norm", f"{at}.input_norm")]
        ops += [("linear", f"{at}.attn.{name}_proj") for name in "qkv"]
        ops += [("scaled_dot_product_attention", f"{at}.attn"), ("linear", f"{at}.attn.o_proj")]
        ops += [("add", at), ("layer_norm", f"{at}.post_norm")]
        ops += [("linear", f"{at}.mlp.gate"), ("silu", f"{at}.mlp.act"), ("linear", f"{at}.mlp.up")]
        ops += [("mul", f"{at}.mlp"), ("linear", f"{at}.mlp.down"), ("add", at)]
    return rows, [*ops, ("layer_norm", "norm"), ("linear", "head"), ("cross_entropy_loss", "")]


@pytest.mark.parametrize("native", [True, False])
def test_children_that_run_in_another_order_than_defined(native: bool) -> None:
    rows, ops = decoder(3)
    assert owners(rows, ops, native=native) == [owner for _, owner in ops]


def test_two_lists_whose_items_alternate_and_a_pool_that_everybody_shares() -> None:
    pair = leaves(("conv", "Conv2d"), ("norm", "BatchNorm2d"))
    rows = tree(
        [
            ("down", "ModuleList", [(str(k), "Sequential", pair) for k in range(2)]),
            ("pool", "MaxPool2d", []),
            ("up", "ModuleList", leaves(("0", "ConvTranspose2d"), ("1", "ConvTranspose2d"))),
            ("merge", "ModuleList", [(str(k), "Sequential", pair) for k in range(2)]),
        ]
    )
    ops: list[tuple[str, str]] = []
    for k in range(2):
        ops += [("conv2d", f"down.{k}.conv"), ("add_", f"down.{k}.norm"), ("batch_norm", f"down.{k}.norm")]
        ops += [("max_pool2d", "pool")]
    for k in range(2):
        ops += [("conv_transpose2d", f"up.{k}"), ("cat", ""), ("conv2d", f"merge.{k}.conv")]
        ops += [("add_", f"merge.{k}.norm"), ("batch_norm", f"merge.{k}.norm")]
    assert owners(rows, ops) == [owner for _, owner in ops]


def test_what_follows_the_last_block_is_not_the_last_blocks() -> None:
    block = leaves(("conv", "Conv2d"), ("norm", "BatchNorm2d"), ("relu", "ReLU"))
    rows = tree(
        [("layers", "Sequential", [(str(k), "Block", block) for k in range(3)]), ("fc", "Linear", [])]
    )
    ops: list[tuple[str, str]] = []
    for k in range(3):
        ops += [("conv2d", f"layers.{k}.conv"), ("batch_norm", f"layers.{k}.norm")]
        ops += [("add_", f"layers.{k}"), ("relu_", f"layers.{k}.relu")]
    ops += [("mean", ""), ("linear", "fc")]
    assert owners(rows, ops) == [owner for _, owner in ops]


def test_a_class_of_ones_own_may_do_more_than_the_class_of_torch() -> None:
    rows = tree(leaves(("pad", "ZeroPad2d"), ("conv", "DepthwiseConv2d"), ("table", "LearnedEmbedding")))
    ops = [("pad", "pad"), ("conv2d", "conv"), ("mul", "table"), ("embedding", "table")]
    assert owners(rows, ops)[1::2] == ["conv", "table"]


@pytest.mark.parametrize(
    ("defined", "ran"),
    [
        (("k_proj", "v_proj", "q_proj", "out_proj"), ("q_proj", "k_proj", "v_proj", "out_proj")),
        (("word", "position_embeddings", "token_type_embeddings"),
         ("word", "token_type_embeddings", "position_embeddings")),
        (("key_table", "position"), ("key_table", "position")),
    ],
)  # fmt: skip
def test_children_run_in_the_order_that_their_names_go_by(
    defined: tuple[str, ...], ran: tuple[str, ...]
) -> None:
    assert tuple(defined[child] for unit in units_of(defined) for child in unit) == ran


NAMES = st.lists(
    st.sampled_from(["q_proj", "v_proj", "h.0", "h.1", "input_norm", "final", "fc"]), unique=True, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(NAMES, st.data())
def test_moves_keep_all_children_and_the_order_of_those_alike(names: list[str], data: st.DataObject) -> None:
    kinds = [data.draw(st.sampled_from("ab")) for _ in names]
    start = units_of(names)
    assert sorted(child for unit in start for child in unit) == list(range(len(names)))
    before = [child for unit in start for child in unit]
    for candidate in moves(start, names, kinds, start):
        order = [child for unit in candidate for child in unit]
        assert sorted(order) == sorted(before)
        for kind in "ab":
            assert [c for c in order if kinds[c] == kind] == [c for c in before if kinds[c] == kind]
        assert order_penalty(candidate, names) >= 0
