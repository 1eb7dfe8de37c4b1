"""Record one training step of plain PyTorch, as eager runs it, without holding what its backward needs.

Idea        The model runs once under a mode that sees every op, with hooks on what autograd saves and
            around every module. The hooks keep layouts and no tensors, so when a storage goes tells what
            Python and torch hold without autograd. The backward runs on zeros: values decide no bytes
            there. Ops are then measured one by one, as those of any captured graph.
Source      torch.autograd.graph.saved_tensors_hooks, which torch.utils.checkpoint is built on.
Guarantee   Parameters, buffers and random states of the caller are unchanged.
Complexity  One step, at the bytes of a forward without gradients; every distinct op is measured once.
Gaps        Models on the meta device have no values to run on. Bytes that kernels take behind torch's
            allocator are not counted. A backward that cannot run on zeros cannot be recorded.
"""

import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from tightrope.capture._eager import ops_shown
from tightrope.capture._torch import is_random, real_tensors, storage_key, watch_storage
from tightrope.capture.dynamo import environment
from tightrope.capture.typed import Writer, label, view_of
from tightrope.core import CaptureError, Flag, Graph, Kind, Op, Phase, Storage, TightropeError, fitted
from tightrope.core.values import Argument, Input, Items, Part, Result, views
from tightrope.native.hook.allocator import allocator
from tightrope.price.device import alignment_on, device_named
from tightrope.price.ops import price_ops
from tightrope.price.store import PriceStore
from tightrope_export._torch import IGNORED, running_node, tree_leaves, tree_map_only
from tightrope_export.values.tape import Mark, ModuleCall, StepTape

_STATISTICS: Final = {"aten.native_batch_norm.default": (3, 4, 5), "aten.cudnn_batch_norm.default": (3, 4, 5)}
"""Ops that write statistics without saying so: places of the two, and of whether they do."""


def record_step(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> StepTape:
    """Record forward and backward of ``model(*args, **kwargs)``, which returns the loss.

    Raises:
        CaptureError: the step cannot be recorded.
        TightropeError: the model returns no loss.
    """
    recorder, given = _TapeRecorder(), (tuple(args), dict(kwargs or {}))
    with torch.random.fork_rng(devices=[]):
        state, mine = _state(model), tree_map_only(torch.Tensor, _copied, given)
        held = {name: _copied(tensor) for name, tensor in state.items()}
        for name, tensor in held.items():
            kind = Kind.PARAMETER if isinstance(state[name], nn.Parameter) else Kind.BUFFER
            recorder.external(tensor, state[name], kind, name)
        for ours, real in zip(_tensors(mine), _tensors(given), strict=True):
            recorder.external(ours, real, Kind.INPUT, "")
        with recorder.watching(model):
            try:
                result = functional_call(model, held, *mine)
                recorder.turn = len(recorder.events)
                torch.autograd.backward(loss_of(result))
            except TightropeError:
                raise
            except Exception as error:
                text = str(error).strip().splitlines() or [type(error).__name__]
                raise CaptureError(f"{type(model).__name__} cannot be recorded: {text[0]:.200}") from error
    return recorder.finish(model)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same values: of a parameter in the same memory, which a step only reads."""
    if isinstance(tensor, nn.Parameter) or tensor.requires_grad:
        return tensor.detach().requires_grad_(tensor.requires_grad)
    return tensor.clone()


def forward_ns(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], runs: int) -> int:
    """Time the fastest of some forwards that save nothing, in nanoseconds of thread-CPU time."""
    with torch.random.fork_rng(devices=[]), saved_tensors_hooks(lambda _: None, lambda nothing: nothing):
        held = {name: _copied(tensor) for name, tensor in _state(model).items()}
        run = partial(functional_call, model, held, tuple(args), dict(kwargs))
        spent = timeit.repeat(run, timer=time.thread_time_ns, repeat=runs, number=1)
    return int(min(spent))


def loss_of(result: Any) -> torch.Tensor:
    """Find the loss in what a model returns: the scalar, its attribute ``loss``, or the first of a tuple.

    Raises:
        TightropeError: there is none.
    """
    found = getattr(result, "loss", result)
    found = found[0] if isinstance(found, tuple | list) and found else found
    if not isinstance(found, torch.Tensor) or found.numel() != 1 or not found.requires_grad:
        raise TightropeError("the model returns no scalar loss: let its forward return the loss.")
    return found


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """Every element of a tensor once, where it repeats some."""
    sizes = [1 if step == 0 else size for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.detach().as_strided(sizes, tensor.stride(), tensor.storage_offset())


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in arguments or a result, as far as torch sees into them, with bytes."""
    found = vars(tree) if not isinstance(tree, dict) and hasattr(tree, "to_tuple") else tree
    return [one for one in tree_leaves(found) if isinstance(one, torch.Tensor) and one.numel()]


class _TapeRecorder:
    """Mutable state of one recording."""

    def __init__(self) -> None:
        self.events: list[tuple[Mark, int]] = []
        self.turn = 0
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.by_key: dict[int, int] = {}
        self.watched: dict[int, tuple[Mark, int, Callable[[], bool]]] = {}
        self.saves: list[int] = []
        self.layouts: list[tuple[torch.Tensor | None, Callable[[], torch.Tensor]]] = []
        self.asked: dict[int, int] = {}
        self.calls: list[ModuleCall] = []
        self.open: list[int] = []
        self.real: list[tuple[Input, torch.Tensor]] = []
        self.writes: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.buffers: dict[tuple[str, str], int] = {}

    @property
    def path(self) -> str:
        """Path of the module that is open."""
        return self.calls[self.open[-1]].path if self.open else ""

    def external(self, tensor: torch.Tensor, real: torch.Tensor, kind: Kind, name: str) -> int:
        """Enter a tensor of the caller, once for all that share its memory."""
        key = storage_key(tensor)
        if key not in self.by_key:
            self.names[self.storage(tensor, kind, external=True)] = name
        self.real.append((Input(name, view_of(tensor, self.by_key[key])), real))
        return self.by_key[key]

    def storage(self, tensor: torch.Tensor, kind: Kind = Kind.ACTIVATION, *, external: bool = False) -> int:
        """Enter a storage that was not seen before."""
        number, size = len(self.storages), int(tensor.untyped_storage().nbytes())
        new = Storage(number, size, kind, external=external, label=label(tensor), module=self.path)
        self.storages.append(new)
        self.by_key[storage_key(tensor)] = number
        return number

    def known(self, tensor: torch.Tensor) -> int:
        """The storage of a tensor; one that was never seen is the caller's."""
        found = self.by_key.get(storage_key(tensor))
        return self.external(tensor, tensor, Kind.CONSTANT, "constant") if found is None else found

    def poll(self) -> None:
        """Note what has gone since the last event."""
        node = running_node() if self.asked else -1
        for number in [one for one, at in self.asked.items() if at != node]:
            del self.asked[number]
            self.events.append((Mark.RELEASE, number))
        for key, (mark, number, expired) in [*self.watched.items()]:
            if expired():
                del self.watched[key], self.by_key[key]
                self.events.append((mark, number))

    def op(self, function: Any, given: tuple[Any, Any], result: Any) -> None:
        """Note an op that has run."""
        self.poll()  # the mode holds what the op was given: what is gone was gone before it
        name, args, kwargs = str(function), given[0], given[1] or {}
        if name in IGNORED:
            return
        keywords = {key: self.written(value) for key, value in kwargs.items()}
        arguments = [self.written(value) for value in args]
        reads = {view.base for one in (*arguments, *keywords.values()) for view in views(one)} - {-1}
        mutates = self._mutated(function, arguments, keywords)
        made = []
        several = isinstance(result, tuple | list)
        for position, one in enumerate(result if several else [result]):
            if not isinstance(one, torch.Tensor) or not one.untyped_storage().nbytes():
                continue
            if storage_key(one) not in self.by_key:
                number = self.storage(one)
                self.watched[storage_key(one)] = Mark.FREE, number, watch_storage(one)
                made.append(Result(position if several else -1, view_of(one, number)))
        self.writes.update(dict.fromkeys(mutates, len(self.events)))
        self.events.append((Mark.OP, len(self.ops)))
        self.ops.append(
            Op(
                len(self.ops), f"op_{len(self.ops)}", name, tuple(sorted(reads)),
                tuple(one.view.base for one in made), tuple(sorted(mutates)),
                flags=Flag.RANDOM if is_random(function) else Flag.NONE,
                phase=Phase.BACKWARD if self.turn else Phase.FORWARD, module=self.path,
                arguments=tuple(arguments), keywords=tuple(keywords.items()), results=tuple(made),
            )
        )  # fmt: skip

    def written(self, value: Any) -> Argument:
        """Write an argument down."""
        if isinstance(value, torch.Tensor):
            return view_of(value, self.known(value) if value.untyped_storage().nbytes() else -1)
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return Items(tuple(self.written(one) for one in value))
        return Writer({}, {}).argument(value)

    def _mutated(self, function: Any, arguments: list[Argument], keywords: dict[str, Argument]) -> set[int]:
        """Storages that an op writes; notes those that are running statistics of the module that is open."""
        given = {one.name: value for one, value in zip(function._schema.arguments, arguments, strict=False)}
        given.update(keywords)
        written = [given.get(one.name) for one in function._schema.arguments if one.is_write]
        found = {view.base for one in written for view in views(one) if view.base >= 0}
        statistics = {one for one in found if self.storages[one].label == "int64[scalar]"}  # a count of them
        places = _STATISTICS.get(str(function))
        if places is not None and arguments[places[2]]:
            statistics = {view.base for place in places[:2] for view in views(arguments[place])}
        for storage in statistics:
            owner, _, name = self.names.get(storage, "").rpartition(".")
            if name and owner == self.path and self.storages[storage].kind is Kind.BUFFER:
                self.buffers[owner, name] = storage
        return found

    def pack(self, tensor: torch.Tensor) -> int:
        """Take what autograd saves, and keep its layout alone."""
        self.poll()
        number = len(self.saves)
        storage = self.known(tensor) if tensor.untyped_storage().nbytes() else -1
        own = storage < 0 or self.storages[storage].external
        self.saves.append(-1 if own else storage)
        kind: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
        self.events.append((Mark.PACK, number))
        with real_tensors():
            whole = own or not (tensor.is_floating_point() or tensor.is_complex())
            kept = (tensor.detach() if own else _compact(tensor).clone()) if whole else None
        self.layouts.append((kept, partial(torch.empty_strided, tensor.shape, tensor.stride(), **kind)))
        return number

    def unpack(self, number: int) -> torch.Tensor:
        """Give back a tensor of that layout; numbers that may be positions keep their values."""
        self.poll()
        self.events.append((Mark.UNPACK, number))
        kept, empty = self.layouts[number]
        if self.saves[number] < 0:
            assert kept is not None
            self.asked[number] = running_node()
            return kept
        with real_tensors():
            made = empty()
            _compact(made).copy_(torch.zeros(()) if kept is None else kept)
        self.storage(made)
        self.watched[storage_key(made)] = Mark.RELEASE, number, watch_storage(made)
        return made

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """See ops, saves and modules."""
        with ExitStack() as stack:
            for path, module in model.named_modules():
                enter = partial(self._enter, path)
                stack.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                stack.enter_context(module.register_forward_hook(self._exit))
            stack.enter_context(saved_tensors_hooks(self.pack, self.unpack))
            stack.enter_context(ops_shown(self.op))
            yield
            self.poll()  # outside of the backward: everything that was asked for is gone

    def _enter(self, path: str, _module: Any, args: Any, kwargs: Any) -> None:
        self.poll()
        inputs = tuple(dict.fromkeys(self.known(one) for one in _tensors((args, kwargs))))
        self.open.append(len(self.calls))
        places = sum(isinstance(one, torch.Tensor) for one in args)
        self.calls.append(ModuleCall(path, len(self.events), -1, inputs, places=places))
        self.events.append((Mark.ENTER, self.open[-1]))

    def _exit(self, _module: Any, _args: Any, result: Any) -> None:
        self.poll()
        number = self.open.pop()
        outputs = tuple(dict.fromkeys(self.known(one) for one in _tensors(result)))
        self.calls[number] = self.calls[number]._replace(end=len(self.events), outputs=outputs)

    def finish(self, model: nn.Module) -> StepTape:
        """Measure the ops, and put everything together."""
        inputs, real = zip(*self.real, strict=True)
        where = environment([torch.empty(0)])
        kept = [one for one in self.ops if one.creates or one.mutates]
        ops = tuple(replace(op, id=number) for number, op in enumerate(kept))
        graph = Graph(ops, tuple(self.storages), (), (Part(len(kept), inputs),), type(model).__name__, where)
        with real_tensors():
            priced = price_ops(graph, real, allocator=allocator(), store=PriceStore(where)).graph
        measured = {op.id: replace(one, id=op.id) for op, one in zip(kept, priced.ops, strict=True)}
        ops = tuple(measured.get(op.id, op) for op in self.ops)
        whole = Graph(ops, priced.storages, (), (), graph.name, where)
        lists = {
            path: tuple(f"{path}.{name}" if path else name for name, _ in module.named_children())
            for path, module in model.named_modules()
            if isinstance(module, nn.ModuleList | nn.Sequential)
        }
        return StepTape(
            fitted(whole, alignment_on(device_named(where))), tuple(self.events), self.turn,
            tuple(self.saves), tuple(self.calls), self.buffers, lists, self.writes,
        )  # fmt: skip
