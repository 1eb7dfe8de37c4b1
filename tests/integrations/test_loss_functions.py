"""Losses of fine-tuning that are plain torch, over a policy and a frozen reference: DPO, SFT, GRPO."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from tests.run.training import Seen, built, held, same

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.slow,  # 20 steps of a language model, twice, and the search for its plans
    pytest.mark.filterwarnings("ignore:.*deprecated and will be removed in v6:FutureWarning"),  # peft's call
]

NUM_STEPS: Final = 20
ROWS, LENGTH, CLASSES = 8, 48, 384
LOSS: Final = 6 * ROWS * LENGTH * CLASSES * 4
"""Bytes that a loss outside of the model may hold: logits, their gradient and what lies between."""
BETA, CLIP = 0.1, 0.2


class Batch(NamedTuple):
    """Rows of tokens; the second half of a preference batch is what was rejected."""

    tokens: Tensor
    mask: Tensor
    rewards: Tensor


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=CLASSES, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False, attention_dropout=0.1,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def adapted() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.1)
    return get_peft_model(llama(), wanted)  # type: ignore[arg-type]


def batches() -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(NUM_STEPS):
        tokens = torch.randint(CLASSES, (ROWS, LENGTH), generator=generator)
        ends = torch.randint(LENGTH // 2, LENGTH, (ROWS, 1), generator=generator)
        mask = torch.arange(LENGTH) < ends
        mask[:, : LENGTH // 4] = False  # the prompt
        yield Batch(tokens, mask, torch.randn(ROWS, generator=generator))


def log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    """Of each token but the first, given those in front of it; zero where it does not count."""
    logits = model(input_ids=batch.tokens, attention_mask=torch.ones_like(batch.tokens)).logits[:, :-1]
    chosen = logits.gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)
    sums = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])  # row by row: fewer bytes
    return (chosen - sums) * batch.mask[:, 1:]


def dpo(model: nn.Module, reference: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    found, before = log_probabilities(model, batch).sum(-1), reference(batch).sum(-1)
    better, worse = (found - before).chunk(2)
    return -functional.logsigmoid(BETA * (better - worse)).mean()


def grpo(model: nn.Module, reference: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    groups = batch.rewards.view(2, -1)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    found, before = log_probabilities(model, batch), reference(batch)
    ratio = torch.exp(found - found.detach())
    gained = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    apart = torch.exp(before - found) - (before - found) - 1
    mask = batch.mask[:, 1:]
    return (-(gained - BETA * apart) * mask).sum() / mask.sum()


def sft(model: nn.Module, _: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    labels = batch.tokens.masked_fill(~batch.mask, -100)
    loss: Tensor = model(input_ids=batch.tokens, labels=labels).loss
    return loss


Loss = Callable[[nn.Module, Callable[[Batch], Tensor], Batch], Tensor]


def loop(model: nn.Module, see: Seen, *, loss_of: Loss, planned: bool = False) -> None:
    """Train a policy beside a reference: a frozen model, planned or not, or itself without its adapters."""
    if hasattr(model, "disable_adapter"):
        judge, without = model, model.disable_adapter
    else:
        judge, without = built(llama).eval().requires_grad_(False), nullcontext
    if planned and model._compiled_call_impl is not None:
        tightrope.compile(judge, budget=tightrope.report(model).budget or 1 << 40, progress=False)

    def reference(batch: Batch, around: Callable[[], AbstractContextManager[Any]] = without) -> Tensor:
        with torch.no_grad(), around():
            return log_probabilities(judge, batch)

    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    for batch in batches():
        loss = loss_of(model, reference, batch)
        loss.backward()
        see(loss, nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        see.gradients(model)
        optimizer.step()
        optimizer.zero_grad()


class Both(nn.Module):
    """A policy with its reference and its loss inside, as one graph."""

    def __init__(self, loss_of: Loss) -> None:
        super().__init__()
        self.policy, self.judge = llama(), llama().eval().requires_grad_(False)
        self.loss_of = loss_of

    def forward(self, batch: Batch) -> Tensor:
        def reference(batch: Batch) -> Tensor:
            with torch.no_grad():
                return log_probabilities(self.judge, batch)

        return self.loss_of(self.policy, reference, batch)


def inside(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    for batch in batches():
        loss = model(batch)
        loss.backward()
        see(loss)
        see.gradients(model)
        optimizer.step()
        optimizer.zero_grad()


def check(build: Callable[[], nn.Module], run: Any, *, beside: int = 0) -> nn.Module:
    batch = next(batches())
    given = {"input_ids": batch.tokens, "attention_mask": torch.ones_like(batch.tokens)}
    inputs, kwargs = ((batch,), None) if run is inside else ((), given)
    model = same(build, run, inputs, kwargs, share=0.2, extra=LOSS + beside)
    held(model)
    assert any(proof.num_again for proof in tightrope.report(model).proofs)
    return model


WEIGHTS: Final = sum(one.nbytes for one in built(llama).parameters())


@pytest.mark.parametrize(("loss_of", "planned"), [(sft, False), (dpo, False), (dpo, True), (grpo, True)])
def test_a_loss_of_the_loop_beside_a_reference(loss_of: Loss, planned: bool) -> None:
    check(llama, partial(loop, loss_of=loss_of, planned=planned), beside=WEIGHTS * 4)


@pytest.mark.parametrize("loss_of", [dpo, grpo])
def test_a_reference_that_is_the_policy_without_its_adapters(loss_of: Loss) -> None:
    pytest.importorskip("peft")
    check(adapted, partial(loop, loss_of=loss_of), beside=WEIGHTS)


@pytest.mark.parametrize("loss_of", [dpo, grpo])
def test_policy_reference_and_loss_as_one_graph(loss_of: Loss) -> None:
    check(partial(Both, loss_of), inside, beside=3 * WEIGHTS)
