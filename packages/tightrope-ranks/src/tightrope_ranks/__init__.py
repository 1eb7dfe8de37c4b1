"""Many ranks: what every rank of a training step runs and sends, planned under limits per rank.

``pipeline/`` orders the stages of a pipeline; packages beside it plan what goes between ranks. Each plans
for runtimes that exist (`torch.distributed.pipelining`, DDP hooks, DTensor) and is checked by
`tightrope_ranks.judge`.

    plan = tightrope_ranks.plan(layers, x, y, loss, ranks=4, budget="2GiB")   # anywhere
    run = tightrope_ranks.PipelineRun(plan, {stage: module, ...}, loss)       # on every rank

Names are imported when they are first used: they need torch.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_ranks.pipeline.api import plan
    from tightrope_ranks.pipeline.estimate import RanksEstimate
    from tightrope_ranks.pipeline.estimate import estimate_ranks as estimate
    from tightrope_ranks.pipeline.launch import run_ranks
    from tightrope_ranks.pipeline.precision import Precision
    from tightrope_ranks.pipeline.run import PipelineRun
    from tightrope_ranks.pipeline.search import PipelineOptions
    from tightrope_ranks.pipeline.trace import ranks_trace

__getattr__ = lazily(
    __name__,
    {
        "PipelineOptions": "pipeline.search",
        "PipelineRun": "pipeline.run",
        "Precision": "pipeline.precision",
        "RanksEstimate": "pipeline.estimate",
        "estimate": "pipeline.estimate:estimate_ranks",
        "plan": "pipeline.api",
        "ranks_trace": "pipeline.trace",
        "run_ranks": "pipeline.launch",
    },
)

__all__ = [
    "PipelineOptions",
    "PipelineRun",
    "Precision",
    "RanksEstimate",
    "estimate",
    "plan",
    "ranks_trace",
    "run_ranks",
]
