"""Fine-tune with LoRA (PEFT) under a byte budget: the adapters train, the activations are planned.

python examples/lora.py
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import tightrope


def make_net() -> torch.nn.Module:
    """Make a small language model with adapters; nothing is downloaded."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        use_cache=False,
    )
    adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    return get_peft_model(LlamaForCausalLM(config), adapters)  # type: ignore[arg-type]


def train(budget: str | None) -> tuple[list[float], str]:
    net = make_net()
    ids = torch.arange(4 * 128).reshape(4, 128) % 256
    if budget is not None:
        tightrope.compile(net, budget=budget, progress=False)  # after `get_peft_model`
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(10):
        loss = net(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, "" if budget is None else str(tightrope.report(net))


def main() -> None:
    eager, _ = train(None)
    planned, report = train("60%")
    print(report)
    print(f"loss {planned[0]:.2f} -> {planned[-1]:.2f}, equal to eager in every step: {planned == eager}")


if __name__ == "__main__":
    main()
