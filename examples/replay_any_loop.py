"""Hold a loop to a budget without capturing it: any model, any optimizer, as long as it repeats itself.

The first steps warm up, one is recorded, and from then on every allocation has its planned address.
"""

import torch

import tightrope


def main() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data, labels = torch.randn(256, 256), torch.randint(10, (256,))
    held = tightrope.replay(budget="32MiB")
    for _ in range(6):
        with held:
            loss = torch.nn.functional.cross_entropy(model(data), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    peak, arena = tightrope.format_bytes(held.live_peak), tightrope.format_bytes(held.arena)
    print(f"{held.phase}: {held.hits} allocations at planned addresses, {held.misses} elsewhere")
    print(f"peak {peak}, arena {arena}, {held.note}")


if __name__ == "__main__":
    main()
