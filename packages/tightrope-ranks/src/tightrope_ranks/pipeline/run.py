"""Run a joint plan on real ranks, in torch's pipelining runtime.

Idea        The judge walks the plan of all ranks; then every rank gives its own stages and actions to the
            runtime, and holds its allocator to its limit while a step runs.
Guarantee   Nothing runs that the judge refused. No rank's allocator goes above its limit: a request that
            would raises `torch.OutOfMemoryError`. Backwards in ascending order of the micro-batches add
            gradients up as one process does, to the bit. What another rank's end causes is a `RankError`.
Gaps        The limit counts what torch's CPU allocator hands out; buffers of the transport are not torch's.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from tightrope.core import RankError, TightropeError
from tightrope.core.units import Bytes
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline._torch import PlannedStage, SendBook, losses_of, runtime
from tightrope_ranks.pipeline.emit import emitted, orders_of
from tightrope_ranks.values.ranks import JointPlan


class PipelineRun:
    """A rank's part in a plan of all ranks.

    Args:
        plan: of all ranks; judged before anything runs.
        stages: this rank's parts of the model, by stage.
        loss: of output and target of a micro-batch, where the last stage is.
        group: of the ranks; None = all.
        limit: bytes that this rank's allocator may hand out; None = none but the machine's.
        scale_grads: divide gradients by the number of micro-batches.
        kind: of stage, e.g. one that counts.

    Raises:
        JudgeError: the plan is wrong.
        TightropeError: the ranks or the stages are not those of the plan.
    """

    def __init__(
        self,
        plan: JointPlan,
        stages: Mapping[int, torch.nn.Module],
        loss: Callable[..., torch.Tensor] | None = None,
        *,
        group: Any = None,
        limit: Bytes | None = None,
        scale_grads: bool = True,
        kind: type[PlannedStage] = PlannedStage,
    ) -> None:
        judge_ranks(plan)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if size != len(plan.ranks):
            raise TightropeError(f"the plan is for {len(plan.ranks)} ranks, the group has {size}: plan anew.")
        if tuple(sorted(stages)) != plan.work.local(rank):
            raise TightropeError(
                f"rank {rank} was given stages {sorted(stages)}; by the plan it has {plan.work.local(rank)}."
            )
        mine = emitted(plan.work, plan.ranks[rank])
        self.rank, self.limit, self.plan = rank, limit, plan
        self.book = SendBook(mine.waits)
        self.stages = [
            kind(
                module,
                stage,
                len(plan.work.stages),
                book=self.book,
                again=frozenset(micro for where, micro in mine.again if where == stage),
                device=torch.device(plan.machine.device),
                group=group,
            )
            for stage, module in sorted(stages.items())
        ]
        self.runtime = runtime(
            self.stages, orders_of(plan), plan.work.num_micro_batches, loss, scale_grads=scale_grads
        )

    def step(self, *inputs: torch.Tensor, target: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Run forwards and backwards of one batch; gradients are in ``.grad`` then.

        Args:
            inputs: the whole batch, where stage 0 is.
            target: likewise, where the last stage is.

        Returns:
            The losses of the micro-batches, where the last stage is; else nothing.

        Raises:
            RankError: another rank ended or left.
            torch.OutOfMemoryError: this rank's limit does not hold what it does.
        """
        self.book.begin()
        with self._limited():
            try:
                losses = losses_of(self.runtime, *inputs, target=target)
                self.book.end()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if not _of_transport(error):
                    raise
                raise RankError(
                    f"rank {self.rank}: another rank ended or left in mid-step "
                    f"({_first_line(error)}). Start all ranks again from the last checkpoint."
                ) from error
        return losses

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        if self.limit is None:
            yield
            return
        from tightrope.native.hook.allocator import allocator

        with allocator().limited(self.limit):
            yield


def _of_transport(error: BaseException | None) -> bool:
    """Tell whether an error, or what caused it, comes from the network."""
    while error is not None:
        text = str(error)
        if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
            return True
        if any(
            word in text
            for word in ("gloo", "Connection closed", "Connection reset", "Timed out", "Broken pipe")
        ):
            return True
        error = error.__cause__
    return False


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
