"""Models of transformers: ``python -m benchmarks experts --models [--pairs 11] [--json FILE]``.

M9  a step of five families with ``experts_implementation="tightrope"`` at a budget of 100 %, over eager steps
    with transformers' loop over experts and with its grouped products, in interleaved pairs of thread-CPU
    time; and whether they train at 75 % with the losses of an unlimited run
"""

import gc
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor, nn

import tightrope
import tightrope_experts
from benchmarks._measure import HighWater, Loop, paired_ratio
from tightrope.native.hook.allocator import allocator
from tightrope.run.ledger.accounts import accounts

_SIZES: Final = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "head_dim": 32},
    "DeepseekV3": {
        "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 32,
        "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 4,
    },
    "GptOss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32},
    "Olmoe": {"num_experts": 16, "num_experts_per_tok": 4, "intermediate_size": 128, "eos_token_id": 0},
}  # fmt: skip
_STEPS: Final = 5


def _model(family: str, experts: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**_SIZES, **FAMILIES[family]})
    make: Any = transformers.AutoModelForCausalLM.from_config
    made = make(config, experts_implementation=experts)
    assert isinstance(made, nn.Module)
    return made.train()


def _loop(model: nn.Module, words: Tensor) -> Loop:
    return Loop(model, (words,), lambda given: model(input_ids=given, labels=given).loss)


def _trained(model: nn.Module, words: Tensor) -> list[float]:
    loop = _loop(model, words)
    loop.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(_STEPS):
        loop.clear()
        found.append(loop.step().item())
    return found


def _charged() -> int:
    gc.collect()
    return accounts().charged()


def _limited(family: str, words: Tensor) -> dict[str, Any]:
    """Train at 75 % of what a step takes, above what the process holds anyway."""
    others = _charged()
    right = _trained(_model(family, "tightrope"), words)
    whole = tightrope.compile(_model(family, "tightrope"), budget="100%", progress=False)
    _trained(whole, words)
    taken = tightrope.report(whole).unplanned
    del whole
    _charged()
    budget = others + (taken - others) * 3 // 4
    model = _model(family, "tightrope")
    with HighWater(allocator()) as counter:
        found = _trained(tightrope.compile(model, budget=budget, progress=False), words)
    return {
        "same losses": found == right,
        "bytes / budget": round(counter.bytes / budget, 3),
        "level": tightrope.report(model).level,
    }


def _child(family: str, kind: str) -> None:
    """Print what a limited run found, or the seconds of a step for every line that comes."""
    torch.set_num_threads(1)
    tightrope_experts.register()
    words = torch.randint(512, (16, 128), generator=torch.Generator().manual_seed(0))
    if kind == "75 %":
        print(json.dumps(_limited(family, words)), flush=True)
        return
    model = _model(family, "tightrope" if kind == "own" else kind)
    if kind == "own":
        tightrope.compile(model, budget="100%", progress=False)
    loop = _loop(model, words)
    for _ in sys.stdin:
        print(loop.seconds(), flush=True)


class _Elsewhere:
    """A loop in a process of its own, since a budget is that of a process."""

    def __init__(self, family: str, kind: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.experts.models", family, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line."""
        assert self.child.stdout is not None
        found = self.child.stdout.readline()
        if not found:
            raise RuntimeError(f"a model ended with {self.child.wait()}")
        return found

    def seconds(self) -> float:
        """Return the thread-CPU seconds of one step."""
        assert self.child.stdin is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return float(self.line())

    def clear(self) -> None:
        """Do nothing: the process ends soon."""


def families(console: Console, num_pairs: int) -> list[dict[str, Any]]:
    """M9: print a row per family."""
    rows = []
    console.print(f"{'family':<12}{'own / loop':>24}{'own / grouped':>24}   at 75 %")
    for family in FAMILIES:
        row = {"family": family, **json.loads(_Elsewhere(family, "75 %").line())}
        own, *twins = (_Elsewhere(family, kind) for kind in ("own", "eager", "grouped_mm"))
        ratios = [paired_ratio(own, twin, num_pairs=num_pairs) for twin in twins]
        for one in (own, *twins):
            one.child.communicate()
        console.print(f"{family:<12}{ratios[0]!s:>24}{ratios[1]!s:>24}   {row!s}", highlight=False)
        rows.append({**row, "own/loop": asdict(ratios[0]), "own/grouped": asdict(ratios[1])})
    return rows


if __name__ == "__main__":
    _child(*sys.argv[1:])
