"""What an op does to storages, read from its schema once per overload.

plain     makes views or reads no bytes: nothing to record
blank     makes bytes without values (``empty``): they stay until an op writes them, as code that is no op
          of torch may have done so
opaque    cannot run again, or not without more than its schema says: what it makes stays
random    runs again from the state of the generator before its first run
writes    arguments that it changes in place
"""

from dataclasses import dataclass
from typing import Any, Final

import torch

from tightrope.capture._torch import is_composite

BLANK: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
)
"""Names of ops whose results have no values."""
_RESHAPES_STORAGE: Final = ("set_", "resize", "_resize", "swap", "share_memory")
_BATCH_NORM: Final = frozenset({"native_batch_norm", "native_batch_norm_backward"})
_STATISTICS: Final = (3, 4)
_TRAINING: Final = {"native_batch_norm": 5, "native_batch_norm_backward": 7}


@dataclass(slots=True, eq=False)
class OpKind:
    """One overload of an op.

    Attributes:
        number: in the arena's books; -1: nothing of it is recorded.
        name: for messages.
        plain: nothing to record.
        blank: makes bytes without values.
        composite: made of other ops, which are recorded in its place.
        opaque: what it makes or changes stays.
        random: draws.
        writes: positions of arguments that it changes.
        write_names: likewise, of keywords.
        training: position of the flag of batch norm; -1: another op.
    """

    number: int
    name: str
    plain: bool = False
    blank: bool = False
    composite: bool = False
    opaque: bool = False
    random: bool = False
    writes: frozenset[int] = frozenset()
    write_names: frozenset[str] = frozenset()
    training: int = -1

    def statistics_are_aside(self, args: tuple[Any, ...]) -> bool:
        """Tell whether batch norm's running statistics have no part in its results: it trains."""
        return self.training >= 0 and bool(args[self.training])


def classify(func: Any) -> OpKind:
    """Read the schema of an overload; `OpKind.number` is the caller's to set."""
    schema = func._schema
    name = str(schema.name).removeprefix("aten::")
    arguments, returns = schema.arguments, schema.returns
    written = [k for k, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write]
    views = bool(returns) and all(one.alias_info is not None for one in returns) and not written
    positional = frozenset(k for k in written if not arguments[k].kwarg_only)
    lists = any("Tensor" in str(arguments[k].type) and "List" in str(arguments[k].type) for k in written)
    known = func.namespace in ("aten", "prims")
    lifted = known and name == "lift_fresh"  # what code that is no op of torch made
    return OpKind(
        number=-1,
        name=f"{func.namespace}.{name}",
        plain=(views and not lifted) or func.namespace == "profiler",
        blank=known and name in BLANK,
        composite=known and is_composite(func),
        opaque=(not known or lists or lifted or (bool(written) and name.startswith(_RESHAPES_STORAGE))),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        writes=positional,
        write_names=frozenset(arguments[k].name for k in written) if written else frozenset(),
        training=_TRAINING.get(name, -1) if known else -1,
    )


def without_statistics(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave batch norm's running statistics out: the same results, and they are not moved again."""
    return tuple(None if k in _STATISTICS else one for k, one in enumerate(args))
