"""Training loops as people write them: accumulation, mixed precision, clipping, optimizers, shapes."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from training import Blocks, Seen, batches, budget_for, num_recomputed, same

import tightrope
from tightrope.run.compile import compiled_of

DATA = batches(12)


@pytest.mark.slow
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_gradients_accumulate_over_micro_batches(share: float, *, set_to_none: bool) -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            for x, y in DATA[3 * step : 3 * step + 3]:
                loss = functional.cross_entropy(model(x), y) / 3
                loss.backward()
                see(loss)
                see.gradients(model)
            optimizer.step()

    model = same(Blocks, loop, DATA[0][:1], share=share, extra=0)
    assert share or num_recomputed(model) > 0


@pytest.mark.slow
def test_bfloat16_autocast() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for x, y in DATA[:5]:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
                loss = functional.cross_entropy(out, y)
            loss.backward()
            see(out, loss)
            see.gradients(model)
            optimizer.step()

    same(lambda: Blocks(dropout=0.0), loop, DATA[0][:1], share=0.3)
    same(Blocks, loop, DATA[0][:1], share=0.3)


@pytest.mark.slow
def test_autocast_inside_the_model_and_plain_calls_in_turn() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        for number, (x, y) in enumerate(DATA[:6]):
            model.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number % 2 == 0):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            see(loss)
            see.gradients(model)

    model = same(Blocks, loop, DATA[0][:1], share=0.3)
    assert len(compiled_of(model).calls.captured) == 2


def test_gradient_scaler() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for x, y in DATA[:6]:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            see(loss, nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            scaler.step(optimizer)
            scaler.update()
            see(scaler.get_scale())

    same(lambda: Blocks(dropout=0.0), loop, DATA[0][:1], share=0.3)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_clipping_and_an_optimizer_whose_state_appears_after_the_first_step(name: str) -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = OPTIMIZERS[name](model.parameters())
        for x, y in DATA[:5]:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            see(loss, nn.utils.clip_grad_norm_(model.parameters(), 0.3))
            see.gradients(model)
            optimizer.step()

    model = same(Blocks, loop, DATA[0][:1], share=0.1)
    assert num_recomputed(model) > 0


def test_the_state_of_an_optimizer_is_foreseen_by_the_first_plan() -> None:
    model = Blocks(width=64, depth=3)
    x, y = batches(1, width=64)[0]
    weights = sum(p.numel() * 4 for p in model.parameters())
    budget = budget_for(model, (x,), share=0.5) + 2 * weights - 128 * 1024
    tightrope.compile(model, budget=budget, progress=False)
    optimizer = torch.optim.AdamW(model.parameters())
    arenas = []
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        arenas.append(tightrope.report(model).arena)
    report = tightrope.report(model)
    assert len(set(arenas)) == 1
    assert len(report.proofs) == 1
    assert report.num_recomputed > 0
    assert report.observed_total <= budget


@pytest.mark.slow
def test_calls_without_gradient_between_steps_and_between_forward_and_backward() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in DATA[:3]:
            loss = functional.cross_entropy(model(x), y)
            with torch.no_grad():
                see(model(x))
            model.eval()
            with torch.no_grad():
                see(model(y.new_ones(4, 32, dtype=torch.float32)))
            with torch.inference_mode():
                see(model(x))
            model.train()
            optimizer.zero_grad()
            loss.backward()
            see.gradients(model)
            optimizer.step()
            model.eval()
            out = model(x)
            see(out)
            out.sum().backward()
            model.train()

    same(Blocks, loop, DATA[0][:1], share=1.0, extra=1 << 20)


@pytest.mark.slow
def test_a_plan_per_shape() -> None:
    data = [batches(1, size=size, seed=size)[0] for size in (1024, 384, 1024, 640, 384, 1024, 160, 640)]

    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for x, y in data:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            see(loss)
            see.gradients(model)
            optimizer.step()

    model = same(Blocks, loop, data[0][:1], share=0.1)
    calls = compiled_of(model).calls
    assert (len(calls.captured), calls.num_steps) == (4, len(data))
    (last,) = calls.recent
    assert last.turns[0].graph == 2  # the last batch had the third size
    assert tightrope.report(model).arena == last.prepared.arena


@pytest.mark.slow
def test_a_dataclass_of_outputs_with_a_loss_inside_and_one_outside() -> None:
    transformers = pytest.importorskip("transformers")

    def build() -> nn.Module:
        config = transformers.GPT2Config(
            vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        model: nn.Module = transformers.GPT2LMHeadModel(config)
        model.config.use_cache = False
        return model.train()

    ids = torch.randint(48, (3, 4, 16), generator=torch.Generator().manual_seed(5))

    def loop(model: Any, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for row in ids:
            optimizer.zero_grad()
            out = model(row, labels=row)
            assert type(out).__name__ == "CausalLMOutputWithCrossAttentions"
            extra = functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), row[:, 1:].flatten())
            (out.loss + 0.5 * extra).backward()
            see(out.loss, out["logits"], extra)
            see.gradients(model)
            optimizer.step()

    same(build, loop, (ids[0],), {"labels": ids[0]}, share=0.5)


@pytest.mark.slow
def test_a_frozen_base_with_adapters() -> None:
    from benchmarks.zoo import build

    inputs = build("llama_lora", scale="test").inputs

    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(*inputs)
            loss.backward()
            see(loss)
            see.gradients(model)
            optimizer.step()
        for parameter in model.parameters():
            assert (parameter.grad is None) == (not parameter.requires_grad)

    same(lambda: build("llama_lora", scale="test").model, loop, inputs, share=0.3)
