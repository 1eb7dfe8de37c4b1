"""Run a joint plan on real ranks, in torch's pipelining runtime.

Idea        The judge walks the plan of all ranks; then every rank gives its own stages and actions to the
            runtime, and holds its allocator to its limit while a step runs.
Guarantee   Nothing runs that the judge refused. No rank's allocator goes above its limit: a request that
            would raises `tightrope.OutOfBudgetError`, a `torch.OutOfMemoryError`. With a limit, freed blocks
            of 128 KiB or more leave the process at once, so the system counts what the allocator does; a step
            takes longer by the pages that it touches anew. Backwards in ascending
            order of the micro-batches add gradients up as one process does, to the bit: one that divides
            every loss by their number, and adds to the gradients that are there. Gradients of parameters
            that several stages share are within rounding of that. All ranks refuse a batch of other shapes
            or dtypes before anything runs. What another rank's end causes is a `RankError`.
Gaps        The limit counts what torch's CPU allocator hands out; buffers of the transport are not torch's.
            A C library without ``mallopt`` may keep blocks that were freed.
            No plan counts random states, of 5,056 bytes each: two when a step begins, and one per micro-batch
            of a stage that draws and is computed again; nor copies of the buffers that such a stage writes.
            Where a layer or the loss raises on one rank and the error is caught, the others wait until that
            process ends, or for the time-out of the transport.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist

from tightrope.core import RankError, TightropeError
from tightrope.core.units import Bytes
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline._torch import PlannedStage, SendBook, compact, losses_of, runtime
from tightrope_ranks.pipeline.agreement import Agreement
from tightrope_ranks.pipeline.copies import TiedCopies
from tightrope_ranks.pipeline.emit import emitted, orders_of
from tightrope_ranks.pipeline.evaluate import forward_only
from tightrope_ranks.values.ranks import JointPlan

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's ``mallopt``, by their numbers in ``malloc.h``."""
_MAPPED: Final[Bytes] = 128 * 1024
"""Blocks from here on are mapped."""


class PipelineRun:
    """A rank's part in a plan of all ranks.

    Args:
        plan: of all ranks; judged before anything runs.
        stages: this rank's parts of the model, by stage.
        loss: of output and target of a micro-batch, where the last stage is.
        group: of the ranks; None = all.
        limit: bytes that this rank's allocator may hand out; None = none but the machine's.
        scale_grads: divide losses by the number of micro-batches before their backwards.
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
        for stage in range(plan.work.frozen):
            if stage in stages and any(one.requires_grad for one in stages[stage].parameters()):
                raise TightropeError(
                    f"stage {stage} has parameters to train; it was frozen when the plan was made: plan anew."
                )
        mine = emitted(plan.work, plan.ranks[rank])
        self.copies = TiedCopies(plan.work, mine.ties, stages, group)
        self.rank, self.limit, self.plan, self.group = rank, limit, plan, group
        if limit is not None:
            give_back_at_once()
        self.parts, self.device = dict(sorted(stages.items())), torch.device(plan.machine.device)
        self.book = SendBook(mine.waits)
        self.stages = [
            kind(
                module,
                stage,
                len(plan.work.stages),
                book=self.book,
                again=frozenset(micro for where, micro in mine.again if where == stage),
                scale=plan.work.num_micro_batches if scale_grads else 1,
                device=self.device,
                group=group,
            )
            for stage, module in self.parts.items()
        ]
        self.loss, self.last = loss, len(plan.work.stages) - 1 in stages
        self.runtime = runtime(
            self.stages,
            orders_of(plan),
            plan.work.num_micro_batches,
            compact(loss or _no_loss),  # torch runs no backward where there is none
            frozen=plan.work.frozen,
        )
        self.agreement = Agreement(plan.work, group, self.device)

    def step(self, *inputs: torch.Tensor, target: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Run forwards and backwards of one batch; its gradients are added to ``.grad``.

        Args:
            inputs: the whole batch, where stage 0 is.
            target: likewise, where the last stage is.

        Returns:
            The losses of the micro-batches, where the last stage is; else nothing.

        Raises:
            TightropeError: on every rank, before anything runs: the batch does not divide into micro-batches
                of the planned shapes and dtypes, or a rank gives no input, target or loss where it has to.
            RankError: another rank ended or left.
            tightrope.OutOfBudgetError: this rank's limit does not hold what it does; it is a
                `torch.OutOfMemoryError`.
        """
        first, last = 0 in self.parts, self.last
        with self._guarded():
            missing = "a loss" if last and self.loss is None else ""
            self.agreement.on_step(inputs if first else None, (target,) if last else None, missing)
            self.book.begin()
            with self.copies.summed():
                losses = losses_of(self.runtime, *(inputs if first else ()), target=target if last else None)
                self.book.end()
        return losses

    def evaluate(self, *inputs: torch.Tensor, target: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Run forwards alone, without gradients; modules stay in the mode they are in.

        Args:
            inputs: a whole batch of any number of rows, where stage 0 is.
            target: likewise, where the last stage is; None = outputs are returned.

        Returns:
            Where the last stage is, the losses of the micro-batches, or without target or loss their outputs;
            else nothing. There are fewer micro-batches than planned where there are fewer rows.

        Raises:
            TightropeError: on every rank, before anything runs: inputs or rows are missing, or dtypes are
                not the planned ones.
            RankError: another rank ended or left.
            tightrope.OutOfBudgetError: see `step`.
        """
        with self._guarded(), torch.no_grad():
            count = self.agreement.on_evaluation(
                inputs if 0 in self.parts else None, (target,) if self.last else None
            )
            outputs = forward_only(self.plan.work, self.parts, inputs, count, self.group, self.device)
            if not self.last or target is None or self.loss is None:
                return outputs
            targets = target.tensor_split(count)
            return [self.loss(one, wanted) for one, wanted in zip(outputs, targets, strict=True)]

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Hold the limit, and say which errors are those of other ranks."""
        with contextlib.ExitStack() as stack:
            if self.limit is not None:
                from tightrope.native.hook.allocator import allocator

                stack.enter_context(allocator().limited(self.limit))
            try:
                yield
            except RuntimeError as error:
                if (refused := _refused(error)) is not None:
                    raise refused from None
                if not _of_transport(error):
                    raise
                raise RankError(
                    f"rank {self.rank}: another rank ended or left in mid-step "
                    f"({_first_line(error)}). Start all ranks again from the last checkpoint."
                ) from error


def give_back_at_once() -> None:
    """Let the C library map blocks one by one: by default it keeps those of up to 32 MiB that were freed."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # of glibc
        for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(parameter, _MAPPED)
        library.malloc_trim(0)


def _no_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Stand in for the loss on ranks that compute none."""
    raise AssertionError("a rank without the last stage computes no loss")


def _refused(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """Find a refusal of the allocator in what caused an error: torch wraps those of forwards."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__
    return error


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
