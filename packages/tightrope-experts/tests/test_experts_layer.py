"""Values and gradients against a product per token and expert, models of transformers, and refusals."""

import copy
import math
import re
import sys

import pytest
import torch
from references import Blocks, dense
from torch import Tensor, nn
from torch.nn import functional

from tightrope.core import TightropeError
from tightrope_experts import MoE, limited, load_of, mix, register

NUM_TOKENS, DIM, HIDDEN, EXPERTS = 60, 16, 12, 6


def glu(before: Tensor) -> Tensor:
    gate, value = before.chunk(2, dim=-1)
    return functional.silu(gate) * value


def drawn(load: str, k: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Draw tokens, choices, gates and weights."""
    torch.manual_seed(seed)
    x, gates = torch.randn(NUM_TOKENS, DIM), torch.rand(NUM_TOKENS, k)
    scores = torch.rand(NUM_TOKENS, EXPERTS)
    if load == "one":
        scores[:, 2] += 1
    elif load == "empty":
        scores[:, 3:] -= 1
    chosen = scores.topk(k).indices
    up = torch.randn(EXPERTS, 2 * HIDDEN, DIM) / DIM**0.5
    down = torch.randn(EXPERTS, DIM, HIDDEN) / HIDDEN**0.5
    return x, chosen, gates, up, down


def given(**others) -> Tensor:  # type: ignore[no-untyped-def]
    """Call `mix` on drawn values, some of which are others."""
    values = dict(zip(("x", "chosen", "gates", "up", "down"), drawn("even", 2), strict=True))
    return mix(**{**values, "activation": glu, **others})


def as_float8() -> dict[str, Tensor]:
    x, _, _, up, down = (one.to(torch.float8_e4m3fn) for one in drawn("even", 2))
    return {"x": x, "up": up, "down": down}


def close(found: Tensor, right: Tensor) -> None:
    assert (found - right).abs().max() <= 1e-6 * right.abs().max().clamp(min=1)


@pytest.mark.parametrize("load", ["even", "one", "empty"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("rows", [7, 1024])
def test_values_and_all_gradients_are_those_of_a_product_per_token_and_expert(
    load: str, k: int, rows: int
) -> None:
    x, chosen, gates, up, down = drawn(load, k)
    leaves = [x, gates, up, down]
    back = torch.randn(NUM_TOKENS, DIM)
    found, right = [], []
    for values, make in ((found, mix), (right, dense)):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        options = {"rows": rows} if make is mix else {}
        out = make(given[0], chosen, given[1], given[2], given[3], glu, **options)  # type: ignore[operator]
        values += [out.detach(), *torch.autograd.grad(out, given, back)]
    for one, other in zip(found, right, strict=True):
        close(one, other)


@pytest.mark.parametrize("k", [1, 2])
def test_blocks_of_a_sparse_matrix_give_the_same(k: int) -> None:
    x, chosen, gates, up, down = drawn("even", k)
    up = up[:, :HIDDEN]
    blocks = Blocks(chosen, EXPERTS, HIDDEN, size=4)
    assert sorted(blocks.transposed) == list(range(len(blocks.blocks)))
    columns = [blocks.blocks[number][1] for number in blocks.transposed]
    assert columns == sorted(columns)
    close(mix(x, chosen, gates, up, down, torch.relu), blocks.layer(x, gates, up, down, torch.relu))


def test_biases_and_transposed_weights() -> None:
    x, chosen, gates, up, down = drawn("even", 2)
    biases = torch.randn(EXPERTS, 2 * HIDDEN), torch.randn(EXPERTS, DIM)
    leaves = [x, gates, up, down, *biases]
    back = torch.randn(NUM_TOKENS, DIM)

    def found(transposed: bool) -> list[Tensor]:
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        weights = [one.mT.contiguous().mT if transposed else one for one in given[2:4]]
        out = mix(given[0], chosen, given[1], *weights, glu, biases=(given[4], given[5]), rows=9)
        return [out, *torch.autograd.grad(out, given, back)]

    def right() -> list[Tensor]:
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        pre = torch.einsum("tm,ewm->tew", given[0], given[2]) + given[4]
        each = torch.einsum("teh,emh->tem", glu(pre), given[3]) + given[5]
        weights = torch.zeros(NUM_TOKENS, EXPERTS).scatter(1, chosen, given[1])
        out = (each * weights[..., None]).sum(1)
        return [out, *torch.autograd.grad(out, given, back)]

    expected = right()
    for transposed in (False, True):
        for one, other in zip(found(transposed), expected, strict=True):
            assert (one - other).abs().max() <= 2e-6 * other.abs().max().clamp(min=1)


def test_a_token_may_choose_an_expert_twice() -> None:
    x, _, gates, up, down = drawn("even", 2)
    chosen, biases = torch.ones(NUM_TOKENS, 2, dtype=torch.int32), torch.randn(EXPERTS, DIM)
    gates.requires_grad_()
    made = mix(x, chosen, gates, up, down, glu, biases=(None, biases))
    close(made, dense(x, chosen, gates, up, down, glu) + gates.sum(1, keepdim=True) * biases[1])
    made.sum().backward()
    assert gates.grad is not None
    assert torch.equal(gates.grad[:, 0], gates.grad[:, 1])


def test_double_precision_stays_under_autocast_and_a_product_in_the_activation_has_one_type() -> None:
    turn = torch.randn(HIDDEN, HIDDEN)
    x, chosen, gates, up, down = drawn("even", 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mix(x.double(), chosen, gates, up.double(), down.double(), glu).dtype == torch.float64
        x = drawn("even", 2)[0].requires_grad_()
        made = given(x=x, activation=lambda t: glu(t) @ turn.to(t.dtype))
    made.sum().backward()
    assert x.grad is not None


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    chosen = torch.tensor([[0, 2], [2, 0], [2, 3], [0, 2]])
    given = [torch.randn(size, dtype=torch.float64) for size in ((4, 3), (4, 2), (3, 4, 3), (3, 3, 2))]

    def run(x: Tensor, gates: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return mix(x, chosen, gates, up, down, glu, rows=2)

    assert torch.autograd.gradcheck(run, [one.requires_grad_() for one in given])


def test_rows_that_are_dropped_count_nothing_and_the_others_stay() -> None:
    x, chosen, gates, up, down = drawn("one", 2)
    kept, lost = limited(chosen, EXPERTS, 15)
    assert int(lost.sum()) == int((kept == EXPERTS).sum()) > 0
    assert torch.equal(load_of(chosen, EXPERTS) - lost, load_of(kept, EXPERTS))
    close(mix(x, kept, gates, up, down, glu), dense(x, kept, gates, up, down, glu))
    gates.requires_grad_()
    mix(x, kept, gates, up, down, glu).sum().backward()
    assert gates.grad is not None
    assert not gates.grad[kept == EXPERTS].any()


def test_bf16_rounds_as_a_product_in_bf16_does() -> None:
    x, chosen, gates, up, down = drawn("even", 2)
    exact = mix(x, chosen, gates, up, down, glu)
    low = mix(
        *(one.bfloat16() if one.is_floating_point() else one for one in (x, chosen, gates, up, down)), glu
    )
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).abs().max() <= 0.05 * exact.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mix(x, chosen, gates, up, down, glu).dtype == torch.bfloat16


CONFIGS = {
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "DeepseekV3": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
    },
    "GptOss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16},
    "Olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "eos_token_id": 0},
}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_models_of_transformers_train_as_with_their_own_experts(family: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    sizes = {
        "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 128,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**{**sizes, **CONFIGS[family]})
    register(rows=16)
    words = torch.randint(128, (2, 24), generator=torch.Generator().manual_seed(0))
    found: list[tuple[Tensor, dict[str, Tensor | None]]] = []
    for name in ("eager", "tightrope"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), experts_implementation=name
        )
        loss = model.train()(input_ids=words, labels=words).loss
        loss.backward()
        found.append((loss.detach(), {name: one.grad for name, one in model.named_parameters()}))
    (loss, right), (own_loss, own) = found
    assert abs(own_loss - loss) <= 1e-6
    for name, gradient in right.items():
        mine = own[name]
        assert (mine is None) == (gradient is None), name
        if gradient is not None and mine is not None:
            assert (mine - gradient).abs().max() <= 2e-6 * gradient.abs().max().clamp(min=1e-3), name


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MoE(8, 8, num_experts=2, k=3), "k=3: a token chooses 1 to 2 experts"),
        (lambda: MoE(8, 8, num_experts=2, activation="softly"), "activation='softly'"),
        (lambda: MoE(8, 8, num_experts=2, capacity=math.nan), "capacity=nan"),
        (lambda: MoE(8, 8, num_experts=8, capacity=0.5), "leaves no row"),
        (lambda: MoE(8, 8, num_experts=2)(torch.ones(3, 4)), "x has shape (3, 4)"),
        (lambda: mix(*drawn("even", 2)[:4], torch.ones(3, 2, 2), glu), "down (3, 2, 2)"),
        (lambda: mix(torch.ones(5, 3), *drawn("even", 2)[1:], glu), "x has shape (5, 3)"),
        (
            lambda: mix(drawn("even", 2)[0], torch.full((NUM_TOKENS, 2), 9), *drawn("even", 2)[2:], glu),
            "chose expert 9",
        ),
        (
            lambda: mix(
                *drawn("even", 2)[:2], torch.full((NUM_TOKENS, 2), math.nan), *drawn("even", 2)[3:], glu
            ),
            "A gate is NaN",
        ),
        (
            lambda: MoE(8, 8, num_experts=8, capacity=0.9)(torch.ones(8, 8)),
            "leaves no row for an expert: 8 tok",
        ),
        (lambda: MoE(8, 8, num_experts=2, rows=2.5), "rows=2.5"),  # type: ignore[arg-type]
        (lambda: given(**as_float8()), "This cpu does not compute in torch.float8_e4m3fn"),
        (lambda: MoE(8, 8, num_experts=2, rows=0), "rows=0"),
        (lambda: MoE(0, 8, num_experts=2), "dim=0"),
        (lambda: MoE(8, 8, num_experts=2, activation=functional.dropout), "It is random"),
        (
            lambda: MoE(8, 8, num_experts=2, gated=False, activation=nn.SiLU(inplace=True)),
            "writes over its input",
        ),
        (lambda: given(activation=lambda t: functional.dropout(glu(t), 0.5)), "It is random"),
        (lambda: given(activation=lambda t: glu(t).float().double()), "in the same type"),
        (lambda: given(activation=lambda t: t.tanh_()), "writes over its input"),
        (lambda: given(biases=(torch.ones(2 * HIDDEN), None)), "The bias of up has shape (24,)"),
        (lambda: given(biases=(None, torch.ones(EXPERTS, 1))), "The bias of down has shape (6, 1)"),
        (lambda: given(x=torch.ones(NUM_TOKENS, DIM).double()), "Give one floating-point type"),
        (lambda: given(chosen=torch.zeros(NUM_TOKENS, 2)), "chosen is torch.float32"),
        (
            lambda: given(chosen=torch.zeros(NUM_TOKENS, 0).long(), gates=torch.ones(NUM_TOKENS, 0)),
            "k of at least 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(make, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TightropeError, match=re.escape(said)):
        make()


def test_bf16_without_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.mm

    def mm(left: Tensor, right: Tensor, **others: Tensor) -> Tensor:
        if left.dtype == torch.bfloat16:
            raise NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'BFloat16'")
        return plain(left, right, **others)

    monkeypatch.setattr(torch, "mm", mm)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(TightropeError, match=re.escape("does not compute in torch.bfloat16")),
    ):
        given(activation=lambda before: glu(before))


def test_bf16_without_the_kernels_of_mkldnn_gives_the_same() -> None:
    torch.manual_seed(0)
    layer, x = MoE(16, 12, num_experts=6, k=2).bfloat16(), torch.randn(60, 16, dtype=torch.bfloat16)
    right = layer(x)
    with torch.backends.mkldnn.flags(enabled=False, deterministic=None, allow_tf32=None):
        assert torch.allclose(layer(x), right, rtol=0.05, atol=0.02)


def test_what_is_refused_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    moe = pytest.importorskip("transformers.integrations.moe")
    registered = type(moe.ALL_EXPERTS_FUNCTIONS)
    monkeypatch.setattr(registered, "_global_mapping", dict(registered._global_mapping))
    registered._global_mapping.pop("tightrope", None)
    for rows in (0, -3, 1.5):
        with pytest.raises(TightropeError, match=f"rows={rows}: give a whole number from 1"):
            register(rows)  # type: ignore[arg-type]
    assert "tightrope" not in registered._global_mapping
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(TightropeError, match="is not installed: pip install"):
        register()
    assert "tightrope" not in registered._global_mapping
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", moe)
    register()
    assert "tightrope" in registered._global_mapping


def test_no_token_and_noise_that_only_training_has() -> None:
    layer = MoE(8, 16, num_experts=4, k=2, noise=1.0)
    for capacity in (0.0, 1.0, -1.0):
        layer.capacity = capacity
        assert layer(torch.ones(0, 8)).shape == (0, 8)
    layer.capacity = 0.0
    x = torch.randn(40, 8)
    torch.manual_seed(0)
    first = layer(x)
    assert not torch.equal(first, layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert isinstance(layer.up, nn.Parameter)
