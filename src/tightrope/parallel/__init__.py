"""Many ranks: what every rank of a training step runs and sends, planned under limits per rank.

``pipeline/`` orders the stages of a pipeline; packages beside it plan what goes between ranks. Each plans
for runtimes that exist (`torch.distributed.pipelining`, DDP hooks, DTensor) and is checked by
`tightrope.judge`.
"""

__all__: list[str] = []
