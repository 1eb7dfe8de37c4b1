"""Random scenarios and machines, from a seed."""

import random

from tightrope_fleet.streams import StreamCase, expand
from tightrope_fleet.values.streams import (
    ModelCost,
    Rules,
    StreamMachine,
    StreamModel,
    StreamProcessor,
    StreamScenario,
)


def random_case(
    seed: int,
    *,
    models: int = 3,
    processors: int = 2,
    horizon_ms: int = 200,
    arena: bool = False,
    rules: Rules = "strict",
) -> StreamCase:
    """Make a case: tight frame rates, chains, probabilities, and perhaps an arena that holds not all."""
    draw = random.Random(seed)
    made = []
    for m in range(models):
        after = (f"m{draw.randrange(m)}",) if m and draw.random() < 0.4 else ()
        made.append(
            StreamModel(
                f"m{m}",
                draw.choice((15, 24, 30, 45, 60)),
                after=after,
                probability=1.0 if rules == "compatible" else draw.choice((1.0, 1.0, 0.7)),
                quality=draw.choice((1.0, 0.9)),
                weights=draw.randrange(1, 50) * 1000,
                activations=draw.randrange(1, 20) * 1000,
            )
        )
    chips = tuple(
        StreamProcessor(
            f"p{p}",
            {one.name: ModelCost(draw.randrange(1, 40) * 1_000_000, draw.random() * 900) for one in made},
        )
        for p in range(processors)
    )
    most = max(one.weights + one.activations for one in made)
    machine = StreamMachine("random", chips, int(most * draw.uniform(1, 2)) if arena else 0, 20e6)
    return expand(
        StreamScenario("random", tuple(made)), machine, rules=rules, horizon=horizon_ms * 1_000_000, seed=seed
    )
