"""Where data, copies, forward and loss begin in a stretch of ops between two certain marks.

Idea        Where it is known when the model ran, what stands before it is data and copies, and what
            follows it is the loss. Elsewhere the first op with weights is in the model, and so is the
            last one; before them, random numbers, batches put together and copies of bytes are no part
            of it, and behind them the loss begins at the first op that compares or is called a loss.
            Updates in place right after a backward, before any of that, are an optimizer that torch does
            not mark.
Guarantee   Stages are given in this order: optimizer, data and copies, forward, loss.
Complexity  Linear.
Gaps        See `stages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tightrope.core import EventPhase
from tightrope_trace.vocabulary import KNOWN, MADE, plain

_F, _L, _D, _C, _O = (
    EventPhase.FORWARD,
    EventPhase.LOSS,
    EventPhase.LOAD_DATA,
    EventPhase.COPY,
    EventPhase.OPTIMIZER,
)


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WEIGHTS: Final = MADE | _set("matmul mm bmm baddbmm scaled_dot_product_attention einsum")
_COPIES: Final = _set("to _to_copy copy_ cpu cuda")
_DRAWN: Final = _set(
    "randn rand randint randperm normal normal_ uniform_ random_ bernoulli multinomial randn_like "
    "rand_like randint_like from_file stack pin_memory _pin_memory is_pinned"
)
"""Ops that make batches; what stands between them and the copies belongs to the data."""
_BESIDE: Final = _set(
    "view reshape select slice index index_select unbind unsqueeze squeeze permute transpose t contiguous "
    "clone detach detach_ lift_fresh empty zeros ones full arange cat item _local_scalar_dense div sub "
    "mul float empty_strided set_ resize_ narrow split expand as_strided alias resolve_conj"
)
"""Ops that stand beside those that make batches."""
_LOOKS: Final = _set(
    "view reshape flatten slice select contiguous transpose permute squeeze unsqueeze to expand alias "
    "broadcast_tensors"
)
"""Ops that the loss may apply to what the model returns."""
_COMPARES: Final = _set(
    "log_softmax logsumexp sub rsub gather log log_sigmoid softplus abs pow square cdist "
    "pairwise_distance neg cosine_similarity cosine_embedding_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits mean sum"
)
"""Ops that a loss begins with, once what it is applied to has been looked at."""
_UPDATES: Final = _set(
    "add_ sub_ mul_ div_ addcmul_ addcdiv_ lerp_ zero_ sqrt_ copy_ clamp_ addcdiv addcmul lerp sqrt"
)
_NUMBERS: Final = _set("item _local_scalar_dense is_nonzero")
_READ_OUT: Final = _set(
    "item _local_scalar_dense is_nonzero detach to cpu add add_ div mul argmax eq sum mean max isnan "
    "isfinite all any view clone zeros tolist resolve_conj resolve_neg numpy_T"
)
"""Ops by which a loop reports how it goes."""


@dataclass(slots=True)
class StageStretch:
    """Ops between two certain marks.

    Attributes:
        before: stage that ended right before, if any.
        after: stage that begins right after, if any.
        positions: of the ops.
        names: of the ops, bare.
        moving: whether an op copies bytes.
        fixed: stages that ranges tell.
        inside: whether the model was running; None where nobody knows.
    """

    before: EventPhase | None = None
    after: EventPhase | None = None
    positions: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    moving: list[bool] = field(default_factory=list)
    fixed: list[EventPhase | None] = field(default_factory=list)
    inside: list[bool | None] = field(default_factory=list)

    @property
    def copies(self) -> list[bool]:
        """Whether an op does nothing but copy bytes."""
        return [moving and name in _COPIES for moving, name in zip(self.moving, self.names, strict=True)]

    def add(
        self, position: int, name: str, moving: bool, fixed: EventPhase | None, inside: bool | None
    ) -> None:
        """Append an op."""
        self.positions.append(position)
        self.names.append(name)
        self.moving.append(moving)
        self.fixed.append(fixed)
        self.inside.append(inside)


def bare(name: str) -> str:
    """The name of an op without its namespace."""
    return name.rpartition("::")[2]


def uses_weights(name: str) -> bool:
    """Whether an op is one that layers with weights make."""
    return plain(name) in MADE


def moves_bytes(name: str) -> bool:
    """Whether a slice is a copy."""
    return bare(name) in ("_to_copy", "copy_")


def split(stretch: StageStretch) -> list[EventPhase]:
    """Name the stage of every op of a stretch.

    Example:
        >>> stretch = StageStretch(after=EventPhase.BACKWARD)
        >>> for k, name in enumerate(("randn", "linear", "sub", "pow", "mean")):
        ...     stretch.add(k, name, False, None, None)
        >>> [stage.value for stage in split(stretch)]
        ['load_data', 'forward', 'loss', 'loss', 'loss']
    """
    found = _unfixed(stretch)
    return [fixed if fixed is not None else one for fixed, one in zip(stretch.fixed, found, strict=True)]


def _unfixed(stretch: StageStretch) -> list[EventPhase]:
    names, count = stretch.names, len(stretch.names)
    ran = [k for k in range(count) if stretch.inside[k] or stretch.fixed[k] is _F]
    weights = [k for k, name in enumerate(names) if plain(name) in _WEIGHTS]
    losses = [k for k, name in enumerate(names) if _is_loss(name)]
    before, after = stretch.before, stretch.after
    if not ran and before is EventPhase.BACKWARD:
        if after is not EventPhase.BACKWARD:
            return [_O] * count
        if not weights and not losses:
            return [EventPhase.BACKWARD] * count
    if (
        not (ran or weights)
        and before is _O
        and after is not EventPhase.BACKWARD
        and _READ_OUT.issuperset(names)
    ):
        return [EventPhase.OTHER] * count
    known = any(one is not None for one in stretch.inside) or bool(ran)
    if known:
        if not ran:
            told = _D if _D in (before, after) else EventPhase.OTHER
            return [_C if copies else told for copies in stretch.copies]
        begin, end = ran[0], ran[-1] + 1
        early = _updates(names[:begin]) if before is EventPhase.BACKWARD else 0
        loss = end if end < count else _named(names, weights, begin)
    else:
        first = min(weights + losses, default=count)
        early = _updates(names[:first]) if before is EventPhase.BACKWARD else 0
        begin = early + _drawn(names[early:first], stretch.moving[early:first])
        loss = _compared(names, max(weights[-1] + 1 if weights else 0, begin))
        loss = loss if after is EventPhase.BACKWARD or losses else count
    report = _reported(names[early:begin]) if before is _O else 0
    data = [EventPhase.OTHER] * report
    data += [_C if copies else _D for copies in stretch.copies[early + report : begin]]
    return [_O] * early + data + [_F] * (loss - begin) + [_L] * (count - loss)


def _is_loss(name: str) -> bool:
    return "loss" in name.lower() or plain(name) in KNOWN["loss"].signature


def _updates(names: Sequence[str]) -> int:
    """The end of the updates in place that come first, if any."""
    found = [k for k, name in enumerate(names) if name in _UPDATES or name.startswith(("_foreach", "_fused"))]
    return found[-1] + 1 if found else 0


def _reported(names: Sequence[str]) -> int:
    """The end of the ops that come first and read numbers out."""
    return next((k for k, name in enumerate(names) if name not in _NUMBERS), len(names))


def _drawn(names: Sequence[str], moving: Sequence[bool]) -> int:
    """The end of the data and copies that come first: the last op that draws, puts together or copies."""
    last = 0
    for position, name in enumerate(names):
        if name in _DRAWN or (name in _COPIES and moving[position]):
            last = position + 1
        elif name not in _BESIDE and name not in _COPIES:
            break
    return last


def _named(names: Sequence[str], weights: Sequence[int], begin: int) -> int:
    """Where a model computes a loss itself: behind its last weights, from what is called a loss on."""
    start = weights[-1] + 1 if weights else begin
    named = [k for k in range(start, len(names)) if _is_loss(names[k])]
    return named[0] if named else len(names)


def _compared(names: Sequence[str], start: int) -> int:
    """Where the loss begins behind the last op with weights: at the first op that compares, or before it.

    What only looks at the output belongs to the loss that follows it.
    """
    named = [k for k in range(start, len(names)) if _is_loss(names[k])]
    first = [k for k in range(start, len(names)) if names[k] in _COMPARES]
    if not named and not first:
        return len(names)
    if named and not any(names[k] in ("log_softmax", "log", "sub") for k in first):
        first = []
    at = min(named[:1] + first[:1])
    while at > start and names[at - 1] in _LOOKS:
        at -= 1
    return at
