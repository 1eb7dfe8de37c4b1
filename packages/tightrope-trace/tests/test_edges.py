"""Ops between two layers, orders of decoders, ranges in sequences: what names alone tell, and its doubts."""

import pytest
from test_align import Spec, leaves, owners, tree

from tightrope.core import Doubt, Module
from tightrope_trace.align import aligned
from tightrope_trace.prior import has_program, norm_first, norm_last, units_of

Ops = list[tuple[str, str]]


def doubts(rows: list[Module], ops: Ops) -> list[str]:
    return [doubt.value for doubt in aligned([f"aten::{op}" for op, _ in ops], rows).doubts]


def silent(rows: list[Module], ops: Ops) -> list[str]:
    """Ops on a wrong module that are not in doubt."""
    found = aligned([f"aten::{op}" for op, _ in ops], rows)
    assert found.match is None or found.match < 0.99
    return [
        op for (op, path), owner, doubt in zip(ops, found.owners, found.doubts, strict=True)
        if rows[owner].path != path and doubt is Doubt.NONE
    ]  # fmt: skip


def decoder_layer(spec: str) -> Spec:
    kinds = {
        "s": "MultiheadAttention",
        "m": "MultiheadAttention",
        "n": "LayerNorm",
        "l": "Linear",
        "d": "Dropout",
    }
    return leaves(*((name, kinds[name[0]]) for name in spec.split()))


TORCHS = "self_attn multihead_attn linear1 dropout linear2 norm1 norm2 norm3 dropout1 dropout2 dropout3"
FIRST = "norm1 self_attn dropout1 norm2 multihead_attn dropout2 norm3 linear1 dropout linear2 dropout3"
LAST = "self_attn dropout1 norm1 multihead_attn dropout2 norm2 linear1 dropout linear2 dropout3 norm3"


@pytest.mark.parametrize("order", [FIRST, LAST])
@pytest.mark.parametrize("defined", [TORCHS, FIRST, LAST])
def test_decoder_layers_are_told_however_they_are_defined(order: str, defined: str) -> None:
    layer = decoder_layer(defined)
    rows = tree(
        [
            ("table", "Embedding", []),
            ("layers", "ModuleList", [(str(k), "TransformerDecoderLayer", layer) for k in range(3)]),
            *leaves(("norm", "LayerNorm"), ("head", "Linear")),
        ]
    )
    ops: Ops = [("embedding", "table")]
    words = {"norm": ["layer_norm"], "drop": ["dropout"], "line": ["linear"],
             "self": ["linear", "scaled_dot_product_attention", "linear"],
             "mult": ["linear", "linear", "scaled_dot_product_attention", "linear"]}  # fmt: skip
    for k in range(3):
        for name in order.split():
            ops += [(word, f"layers.{k}.{name}") for word in words[name[:4]]]
            if name in ("dropout1", "dropout2", "dropout3"):
                ops.append(("add", f"layers.{k}"))
    ops += [("layer_norm", "norm"), ("linear", "head")]
    assert owners(rows, ops) == [path for _, path in ops]


def test_conventions_do_not_undo_each_other() -> None:
    names = TORCHS.split()
    assert [names[child] for unit in units_of(names) for child in unit] == LAST.split()
    kinds = [""] * len(names)
    assert [names[child] for unit in norm_first(names, kinds) for child in unit] == FIRST.split()
    assert not has_program("TransformerDecoderLayer", ["attn", "fc"])


def test_norms_are_paired_with_branches() -> None:
    names, kinds = (
        ["attn", "fc1", "fc2", "norms.0", "norms.1"],
        ["Mine", "Linear", "Linear", "LayerNorm", "LayerNorm"],
    )
    first = [names[child] for unit in norm_first(names, kinds) for child in unit]
    last = [names[child] for unit in norm_last(names, kinds) for child in unit]
    assert first == ["norms.0", "attn", "norms.1", "fc1", "fc2"]
    assert last == ["attn", "norms.0", "fc1", "fc2", "norms.1"]


def test_weights_of_a_table_that_are_used_again_behind_all_layers_are_the_models() -> None:
    block = leaves(("up", "Linear"), ("down", "Linear"), ("norm", "LayerNorm"))
    rows = tree(
        [("table", "Embedding", []), ("h", "ModuleList", [(str(k), "Block", block) for k in range(2)])]
    )
    ops: Ops = [("embedding", "table")]
    for k in range(2):
        ops += [
            ("linear", f"h.{k}.up"),
            ("gelu", f"h.{k}"),
            ("linear", f"h.{k}.down"),
            ("layer_norm", f"h.{k}.norm"),
        ]
    ops.append(("linear", ""))
    assert owners(rows, ops) == [path for _, path in ops]
    assert doubts(rows, ops)[-1] == "place"


def test_what_ranges_leave_behind_in_a_sequence_is_the_sequences() -> None:
    layers = leaves(*((str(k), kind) for k, kind in enumerate(["Linear", "ReLU", "Linear", "Sigmoid"])))
    rows = tree([("bottom", "Sequential", layers), ("top", "Sequential", layers)])
    ops: Ops = []
    for part in ("bottom", "top"):
        for k, op in enumerate(("linear", "relu", "linear", "sigmoid")):
            ops += [("zeros", part), (op, f"{part}.{k}")]
        ops += [("cat", "")] if part == "bottom" else []
    assert owners(rows, ops) == [path for _, path in ops]


def convolutions(kind: str, spec: Spec) -> list[Module]:
    return tree(
        [
            ("atoms", "Embedding", []),
            ("convs", "ModuleList", [(str(k), kind, spec) for k in range(3)]),
            ("norms", "ModuleList", leaves(*((str(k), "BatchNorm1d") for k in range(3)))),
            ("head", "Linear", []),
        ]
    )


def messages(k: int, first: list[str], own: list[tuple[str, str]]) -> Ops:
    ops = [(word, "") for word in first]
    ops += [(word, f"convs.{k}{child}") for word, child in own]
    return [*ops, ("add_", f"norms.{k}"), ("batch_norm", f"norms.{k}"), ("relu", "")]


def test_a_parents_ops_before_a_child_are_the_parents_where_another_one_of_the_class_has_none() -> None:
    rows = convolutions("GatedConv", leaves(("value", "Linear"), ("score", "Linear")))
    own = [
        ("linear", ".value"),
        ("index", ""),
        ("cat", ""),
        ("linear", ".score"),
        ("exp", ""),
        ("index_add", ""),
    ]
    ops: Ops = [("embedding", "atoms"), *messages(0, [], own)]
    for k in (1, 2):
        ops += messages(k, ["linalg_vector_norm", "div"], own)
    ops += [("mean", ""), ("linear", "head")]
    assert owners(rows, ops) == [path for _, path in ops]
    assert not silent(rows, ops)


def test_ops_between_children_of_unknown_classes_are_in_doubt() -> None:
    rows = convolutions("MyConv", [])
    own = [("matmul", ""), ("index_select", ""), ("mul", ""), ("index_add", "")]
    ops: Ops = [("embedding", "atoms")]
    for k in range(3):
        ops += messages(k, ["linalg_vector_norm", "clamp", "div"], own)
    ops += [("mean", ""), ("linear", "head")]
    assert not silent(rows, ops)
    found = aligned([f"aten::{op}" for op, _ in ops], rows)
    assert found.match == 0.98
    assert found.doubts[1:4] == [Doubt.PLACE] * 3


def test_experts_do_nothing_around_their_layers() -> None:
    expert = leaves(("gate", "Linear"), ("up", "Linear"), ("down", "Linear"))
    rows = tree(
        [("router", "Linear", []), ("experts", "ModuleList", [(str(k), "Expert", expert) for k in range(3)])]
    )
    ops: Ops = [("linear", "router"), ("softmax", ""), ("topk", "")]
    for k in range(3):
        ops += [
            ("eq", ""),
            ("where", ""),
            ("index", ""),
            ("linear", f"experts.{k}.gate"),
            ("silu", f"experts.{k}"),
        ]
        ops += [("linear", f"experts.{k}.up"), ("mul", f"experts.{k}"), ("linear", f"experts.{k}.down")]
        ops += [("index", ""), ("mul", ""), ("index_add", "")]
    assert owners(rows, ops) == [path for _, path in ops]


def test_three_lists_may_alternate() -> None:
    rows = tree(
        [
            ("convs", "ModuleList", leaves(*((str(k), "Linear") for k in range(3)))),
            ("norms", "ModuleList", leaves(*((str(k), "LayerNorm") for k in range(3)))),
            ("gates", "ModuleList", leaves(*((str(k), "GRUCell") for k in range(2)))),
        ]
    )
    ops: Ops = []
    for k in range(3):
        ops += [("linear", f"convs.{k}"), ("layer_norm", f"norms.{k}")]
        ops += [("gru_cell", f"gates.{k}")] if k < 2 else []
    assert owners(rows, ops) == [path for _, path in ops]


@pytest.mark.parametrize(
    ("kinds", "ops", "match"),
    [
        (["Linear", "ReLU", "Linear"], ["linear", "relu", "linear"], 1.0),
        (["Linear", "Dropout", "Linear"], ["linear", "linear"], 0.98),
        (["Linear", "ReLU"], ["linear", "relu", "relu"], 0.98),
        (["Linear", "Mine", "Linear"], ["linear", "mul", "linear"], 0.98),
    ],
)
def test_only_what_torchs_own_classes_leave_no_choice_about_is_proved(
    kinds: list[str], ops: list[str], match: float
) -> None:
    rows = [Module("", "Sequential"), *(Module(str(k), kind, 0) for k, kind in enumerate(kinds))]
    assert aligned([f"aten::{op}" for op in ops], rows).match == match
    named = [Module("", "Net"), *rows[1:]]
    found = aligned([f"aten::{op}" for op in ops], named).match
    assert found is not None
    assert found <= 0.98


def test_forwards_are_told_one_by_one() -> None:
    rows = tree(leaves(("fc", "Linear"), ("norm", "LayerNorm")))
    names = ["aten::linear", "aten::layer_norm"] * 3
    assert aligned(names, rows, [0, 0, 1, 1, 2, 2]).doubts == [Doubt.NONE] * 6
    assert Doubt.PLACE in aligned(names[:3], rows, [0, 0, 0]).doubts


def test_an_activation_of_an_unknown_class_begins_and_ends_with_arithmetic() -> None:
    inner = leaves(
        ("c_fc", "Conv1D"), ("c_proj", "Conv1D"), ("act", "NewGELUActivation"), ("drop", "Dropout")
    )
    block: Spec = [*leaves(("norm", "LayerNorm")), ("mlp", "MLP", inner)]
    rows = tree([("h", "ModuleList", [(str(k), "Block", block) for k in range(2)])])
    projected = ["view", "addmm", "view"]
    made = {
        "c_fc": projected,
        "act": ["mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"],
        "c_proj": projected,
        "drop": ["dropout"],
    }
    ops: Ops = []
    for k in range(2):
        ops.append(("layer_norm", f"h.{k}.norm"))
        ops += [(word, f"h.{k}.mlp.{name}") for name, words in made.items() for word in words]
        ops.append(("add", f"h.{k}"))
    assert owners(rows, ops) == [path for _, path in ops]
