"""Train a small Mixtral under 75 % of the bytes that it takes, while its routing changes."""

import torch
from transformers import AutoModelForCausalLM, MixtralConfig

import tightrope
import tightrope_experts


def main() -> None:
    """Train it, and print the loss of every fifth step and the bytes."""
    tightrope_experts.register(rows=256)
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = MixtralConfig(**sizes, num_key_value_heads=2, vocab_size=256, num_local_experts=8)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="tightrope")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tightrope.compile(model, budget="75%")
    words = torch.randint(256, (16, 128))
    for step in range(10):
        favourite = torch.zeros(8).index_fill_(0, torch.tensor([step % 8]), 5.0 * (step % 2))
        for layer in model.model.layers:
            layer.mlp.gate.weight.data += favourite[:, None] * 1e-2  # every second step towards one expert
        optimizer.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    found = tightrope.report(model)
    print(
        f"{found.observed_total} of {found.budget} bytes, within the limit: "
        f"{found.observed_total <= found.budget}"
    )


if __name__ == "__main__":
    main()
