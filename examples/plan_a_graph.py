"""Plan without running: capture on shapes alone, price from a machine's table, plan, explain, judge.

Nothing here needs the memory of the step: the model is on the meta device and has no weights.
"""

import tempfile
from pathlib import Path

import torch

import tightrope
from tightrope.lower import problems
from tightrope.price import price_graph


def main() -> None:
    with torch.device("meta"):
        layers = [torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(12)]
        model, batch = torch.nn.Sequential(*layers), torch.ones(16384, 4096)
    graph = price_graph(tightrope.capture(model, batch), tightrope.Machine.here())
    print(f"{len(graph.ops)} ops; parameters and inputs {tightrope.format_bytes(graph.persistent)}")

    full = tightrope.plan(graph, budget="100%")
    plan = tightrope.plan(graph, budget="70%")
    print(full.diff(plan))
    print(plan.explain(graph, top=3))

    file = Path(tempfile.mkdtemp()) / "step.plan.json"
    plan.save(file)
    assert not problems(graph, tightrope.Plan.load(file))

    try:
        tightrope.plan(graph, budget="10%")
    except tightrope.InfeasibleError as error:
        print(error)


if __name__ == "__main__":
    main()
