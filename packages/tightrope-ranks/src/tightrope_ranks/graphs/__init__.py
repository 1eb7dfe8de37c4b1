"""Training on whole graphs over ranks, whose messages have few bits.

    run = tightrope_ranks.graphs.train(data, ranks=2)  # torch_geometric.data.Data, or what has its attributes

What needs torch is imported when it is first used.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_ranks.graphs.planning import GraphOptions, plan
    from tightrope_ranks.graphs.training import GraphRun, train

__getattr__ = lazily(
    __name__, {"GraphOptions": "planning", "GraphRun": "training", "plan": "planning", "train": "training"}
)

__all__ = ["GraphOptions", "GraphRun", "plan", "train"]
