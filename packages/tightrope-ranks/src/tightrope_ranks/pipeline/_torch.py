"""torch's pipelining runtime behind one door: its private names, probes for them, and stages that keep less.

The runtime takes a list of actions per rank. Beside it, torch keeps a buffer per micro-batch for everything
that a stage receives, and what has been sent until the step ends; `PlannedStage` has them only while the plan
does.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.pipelining
from torch.distributed.pipelining import PipelineStage, schedules
from torch.utils.checkpoint import checkpoint

from tightrope.core import TightropeError
from tightrope_ranks.pipeline.generate import gpipe, one_f_one_b
from tightrope_ranks.pipeline.language import Action, Orders, read_action
from tightrope_ranks.pipeline.measure import buffers_kept
from tightrope_shared.lending import Lent

_SINGLE: Final = ("GPipe", "1F1B")
SCHEDULES: Final = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
"""What torch ships."""
_NEEDED: Final = (
    (
        schedules,
        (
            "_Action",
            "_ComputationType",
            "_PipelineScheduleRuntime",
            "_add_send_recv",
            "_add_unshard_reshard",
        ),
    ),
    (
        PipelineStage,
        (
            "_forward_metadata_inference",
            "_setup_forward_recv_info",
            "_setup_backward_recv_info",
            "forward_maybe_with_nosync",
            "get_fwd_recv_ops",
            "get_bwd_recv_ops",
            "get_fwd_send_ops",
            "get_bwd_send_ops",
            "forward_one_chunk",
            "backward_one_chunk",
            "backward_weight_one_chunk",
        ),
    ),
)


def probe() -> None:
    """Refuse a torch whose runtime has not the names that are used here.

    Raises:
        TightropeError: names what is missing.
    """
    missing = [f"{owner.__name__}.{n}" for owner, names in _NEEDED for n in names if not hasattr(owner, n)]
    runtime = getattr(schedules, "_PipelineScheduleRuntime", None)
    if not hasattr(runtime, "_prepare_schedule_with_comms"):
        missing.append("_PipelineScheduleRuntime._prepare_schedule_with_comms")
    if missing:
        raise TightropeError(
            f"torch {torch.__version__} has no {', '.join(missing)}: pipelines need the runtime of "
            "torch 2.13."
        )


def torch_action(action: Action) -> Any:
    """Write an action as torch has it."""
    return torch.distributed.pipelining.schedules._Action.from_str(str(action))


def own_action(action: Any) -> list[Action]:
    """Read an action of torch; two that overlap run one after the other."""
    if action.sub_actions is not None:
        return [found for sub in action.sub_actions for found in own_action(sub)]
    return [read_action(str(action))]


def _own(orders: Mapping[int, Sequence[Any]]) -> Orders:
    return tuple(
        tuple(found for action in orders[rank] if action is not None for found in own_action(action))
        for rank in range(len(orders))
    )


def torch_orders(
    name: str, num_ranks: int, per_rank: int, num_micro: int, *, sharded: bool = False
) -> Orders:
    """Ask torch for one of its schedules, with the messages, gathers and reductions that it adds.

    Args:
        name: of `SCHEDULES`.
        num_ranks: P.
        per_rank: stages of each rank.
        num_micro: micro-batches.
        sharded: whether gathers are kept.

    Raises:
        TightropeError: torch has no such schedule for these numbers.
    """
    probe()
    style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
    num_stages = num_ranks * per_rank
    kind = schedules.get_schedule_class(name)
    try:
        if name in _SINGLE:
            if per_rank != 1:
                raise ValueError("it has one stage per rank")
            # both run without a list of actions; what 1F1B prints as one lacks a forward of the last rank
            order = gpipe(num_ranks, num_micro) if name == "GPipe" else one_f_one_b(num_ranks, num_micro)
            compute = {rank: [torch_action(action) for action in row] for rank, row in enumerate(order)}
            runtime = _runtime(schedules._PipelineScheduleRuntime, num_ranks, num_stages, 1, num_micro, style)
            runtime._prepare_schedule_with_comms(compute)
        else:
            runtime = _runtime(kind, num_ranks, num_stages, per_rank, num_micro, style)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise TightropeError(
            f"torch's {name} does not run {num_micro} micro-batches on {num_ranks} ranks of {per_rank} "
            f"stages: {error}."
        ) from error
    own = _own(runtime.pipeline_order_with_comms)
    drop = () if sharded else ("UNSHARD", "RESHARD")
    return tuple(tuple(action for action in row if action.kind not in drop) for row in own)


def _runtime(kind: Any, num_ranks: int, num_stages: int, per_rank: int, num_micro: int, style: str) -> Any:
    """Make a schedule of torch's without processes."""
    stages = [
        SimpleNamespace(
            stage_index=v * num_ranks, num_stages=num_stages, group_size=num_ranks, group_rank=0,
            is_first=v == 0, is_last=False, submod=torch.nn.Identity(), has_backward=True,
        )
        for v in range(per_rank)
    ]  # fmt: skip
    return kind(stages, num_micro, loss_fn=lambda output, target: output)


class SendBook:
    """What a rank has sent, and before which of its computations it waits for which message."""

    def __init__(self, waits: Mapping[int, Sequence[str]]) -> None:
        self.waits = waits
        self.computed = 0
        self.open: dict[str, list[tuple[Any, Lent]]] = {}

    def begin(self) -> None:
        """Start a step."""
        self.computed = 0

    def before_compute(self) -> None:
        """Let go of what the plan lets go of here."""
        for name in self.waits.get(self.computed, ()):
            self.wait(name)
        self.computed += 1

    def wait(self, name: str) -> None:
        """Wait for a message to have left."""
        sent = self.open.pop(name, [])
        while sent:
            work, lent = sent.pop(0)
            work.wait()
            del work  # it holds what was lent
            lent.back()

    def end(self) -> None:
        """Wait for all messages."""
        for name in list(self.open):
            self.wait(name)


class _Begun:
    """What a forward that is computed again begins from: buffers that it writes, and random states.

    Both are kept only where the forward changes them; torch keeps 5,056 bytes of a random state in any case,
    and lets a batch norm count twice.
    """

    def __init__(self, module: torch.nn.Module, *, draws: bool) -> None:
        self.module, self.draws = module, draws
        self.state: torch.Tensor | None = None
        self.written: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def first(self) -> Iterator[None]:
        """Keep what the forward in the block changes."""
        state = torch.get_rng_state() if self.draws else None
        before = [(one, one.detach().clone()) for one in self.module.buffers()]
        yield
        if state is not None and not torch.equal(state, torch.get_rng_state()):
            self.state = state
        self.written = [(one, value) for one, value in before if not torch.equal(one, value)]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Begin from the same in the block; all is afterwards as before."""
        with buffers_kept(self.module), torch.random.fork_rng((), enabled=self.state is not None):
            for one, value in self.written:
                one.data.copy_(value)
            if self.state is not None:
                torch.set_rng_state(self.state)
            yield


class PlannedStage(PipelineStage):  # type: ignore[misc, unused-ignore]
    """A stage that holds buffers while the plan does, and computes forwards again where it says so.

    Args:
        submodule: the part of the model.
        stage: its number.
        num_stages: of all ranks.
        book: of the rank, shared by its stages.
        again: micro-batches whose forward is computed again.
        scale: that the loss is divided by before its backward.
        device: where it runs.
        group: of the ranks of this pipeline.
    """

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage: int,
        num_stages: int,
        *,
        book: SendBook,
        again: frozenset[int] = frozenset(),
        scale: int = 1,
        device: torch.device,
        group: Any = None,
    ) -> None:
        super().__init__(submodule, stage, num_stages, device, group=group)
        self.book, self.again_at, self.scale, self._chunk = book, again, scale, -1

    def _forward_metadata_inference(self, *args: Any, **kwargs: Any) -> Any:
        with buffers_kept(self.submod):  # torch runs a micro-batch that no process runs
            return super()._forward_metadata_inference(*args, **kwargs)

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        with self._without_memory():
            super()._setup_forward_recv_info(num_microbatches, has_backward)
        self._drop(self.args_recv_info.values())

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        with self._without_memory():
            super()._setup_backward_recv_info(num_microbatches)
        self._drop(self.grad_recv_info.values())

    @contextmanager
    def _without_memory(self) -> Iterator[None]:
        """Let torch make its buffers of all micro-batches on no device; each is made when it is needed."""
        device, self.device = self.device, torch.device("meta")
        try:
            yield
        finally:
            self.device = device

    @staticmethod
    def _drop(rows: Any) -> None:
        for infos in rows:
            for info in infos:
                if not info.is_root_arg:
                    info.buffer = None

    def _fill(self, infos: Any) -> None:
        for info in infos:
            if not info.is_root_arg and info.buffer is None and info.tensor_meta is not None:
                meta = info.tensor_meta
                info.buffer = torch.empty(meta.shape, dtype=meta.dtype, device=self.device)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        self._fill(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        self._fill(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _issue(self, name: str, ops: Sequence[Any]) -> list[Any]:
        for op in ops:
            lent = Lent(op.tensor)  # the group's thread holds it after the message has left
            work = dist.isend(lent.take().pop(), op.peer, group=op.group)
            self.book.open.setdefault(name, []).append((work, lent))
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> Any:
        return self._issue(f"{self.stage_index}F{fwd_chunk_id}", super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> Any:
        return self._issue(f"{self.stage_index}B{bwd_chunk_id}", super().get_bwd_send_ops(bwd_chunk_id))

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        if self._chunk in self.again_at and torch.is_grad_enabled():
            here = self.device.type == "cpu"
            begun = _Begun(self.submod, draws=here)
            return checkpoint(
                self.submod,
                *args,
                use_reentrant=False,
                preserve_rng_state=not here,
                context_fn=lambda: (begun.first(), begun.again()),
                **kwargs,
            )
        plain: Any = super().forward_maybe_with_nosync
        return plain(*args, **kwargs)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.book.before_compute()
        self._chunk = fwd_chunk_id
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._drop([self.args_recv_info[fwd_chunk_id]])
        self._chunk = -1
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        self.book.before_compute()
        trains, back = (any(t.requires_grad for t in some) for some in self.fwd_cache[bwd_chunk_id])
        whole = full_backward or not (self.is_first or back)
        if not trains and not self.is_last:  # frozen, and all before
            self.bwd_cache[bwd_chunk_id] = (None,) * len(self.fwd_cache.pop(bwd_chunk_id)[1])
        else:
            scaled = loss if loss is None or self.scale == 1 else loss / self.scale
            super().backward_one_chunk(bwd_chunk_id, scaled, whole, last_backward)
            if whole and loss is not None and not loss._is_view():
                loss.detach_()  # torch keeps it to the end, and its graph has what was computed again
        if not self.is_last:
            self._drop([self.grad_recv_info[bwd_chunk_id]])
        self.book.wait(f"{self.stage_index}F{bwd_chunk_id}")

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.book.before_compute()
        if bwd_chunk_id in self.backward_state:
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


def compact(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Give results of a loss memory of their own size: torch's have that of all elements, and are kept."""

    def small(*args: Any) -> torch.Tensor:
        found = loss(*args)
        spare = isinstance(found, torch.Tensor) and found.untyped_storage().nbytes() > found.nbytes
        return found.clone() if spare else found

    return small


def runtime(
    stages: Sequence[Any],
    orders: Orders,
    num_micro: int,
    loss: Callable[..., torch.Tensor] | None,
    *,
    frozen: int = 0,
) -> Any:
    """Give a schedule with its messages to torch's runtime.

    Args:
        stages: of this rank.
        orders: actions of every rank, messages included.
        num_micro: micro-batches.
        loss: of output and target, on the rank of the last stage.
        frozen: first stages, which get no gradients; torch wants to be told to receive them all the same,
            where they would come from another rank.
    """
    probe()
    kind: Any = torch.distributed.pipelining.schedules._PipelineScheduleRuntime
    made = kind(list(stages), num_micro, loss_fn=loss, scale_grads=False)  # it divides earlier gradients too
    owners = {one.stage: rank for rank, row in enumerate(orders) for one in row}
    actions = {
        rank: [
            torch_action(action)
            for one in row
            for action in (
                [one._replace(kind="RECV_B"), one]
                if one.kind in "BI" and one.stage < frozen and owners[one.stage + 1] != rank
                else [one]
            )
        ]
        for rank, row in enumerate(orders)
    }
    made._prepare_schedule_with_comms(actions, format="compute_comms")
    return made


def losses_of(step: Any, *args: Any, target: Any) -> list[torch.Tensor]:
    """Run a step of a runtime; return the losses of the micro-batches, where the last stage is."""
    losses: list[torch.Tensor] = []
    log = logging.getLogger("torch.distributed.pipelining.schedules")
    level = log.level
    log.setLevel(logging.CRITICAL)  # where an action fails, torch writes the whole schedule, on every rank
    try:
        step.step(*args, target=target, losses=losses, return_outputs=False)
    finally:
        log.setLevel(level)
    return losses
