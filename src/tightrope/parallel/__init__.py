"""Many ranks: what every rank of a training step runs and sends, planned under limits per rank.

``pipeline/`` orders the stages of a pipeline; packages beside it plan what goes between ranks. Each plans
for runtimes that exist (`torch.distributed.pipelining`, DDP hooks, DTensor) and is checked by
`tightrope.judge`.

    plan = tightrope.parallel.plan(layers, x, y, loss, ranks=4, budget="2GiB")   # anywhere
    run = tightrope.parallel.PipelineRun(plan, {stage: module, ...}, loss)       # on every rank

Names are imported when they are first used: they need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tightrope.parallel.pipeline.api import plan
    from tightrope.parallel.pipeline.estimate import RanksEstimate
    from tightrope.parallel.pipeline.estimate import estimate_ranks as estimate
    from tightrope.parallel.pipeline.launch import run_ranks
    from tightrope.parallel.pipeline.run import PipelineRun
    from tightrope.parallel.pipeline.search import PipelineOptions
    from tightrope.parallel.pipeline.trace import ranks_trace

_WHERE: Final = {
    "PipelineOptions": "search",
    "PipelineRun": "run",
    "RanksEstimate": "estimate",
    "estimate": "estimate",
    "plan": "api",
    "ranks_trace": "trace",
    "run_ranks": "launch",
}
_AS: Final = {"estimate": "estimate_ranks"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tightrope.parallel' has no attribute {name!r}")
    return getattr(import_module(f"tightrope.parallel.pipeline.{_WHERE[name]}"), _AS.get(name, name))


__all__ = [
    "PipelineOptions",
    "PipelineRun",
    "RanksEstimate",
    "estimate",
    "plan",
    "ranks_trace",
    "run_ranks",
]
