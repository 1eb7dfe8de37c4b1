"""All ranks agree on a batch before anything runs: what one of them refuses, all refuse, in the same words.

Idea        Every rank looks at what it was given; one small sum tells all whether somebody refuses, who calls
            what, and how many rows there are. Only where somebody refuses are the words exchanged.
Complexity  One message of 40 bytes per rank and call.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from tightrope.core import TightropeError
from tightrope_ranks.values.ranks import StageWork

_STEP: Final = 1
_EVALUATION: Final = 2
Given = Sequence[Any] | None
"""What a rank was given; None where it is not asked for."""


class Agreement:
    """What the ranks of a plan agree on before they run.

    Args:
        work: whose shapes and dtypes a batch has.
        group: of the ranks.
        device: of the messages.
    """

    def __init__(self, work: StageWork, group: Any, device: torch.device) -> None:
        self.work, self.group, self.device = work, group, device
        self.count = work.num_micro_batches

    def on_step(self, inputs: Given, target: Given, missing: str) -> None:
        """Refuse, on every rank, a step that some rank cannot do."""
        said = f"no {missing.removeprefix('a ')} was given; give {missing}" if missing else ""
        said = said or self._divides("input", inputs, 0) or self._divides("target", target, 1)
        self._agree(_STEP, said, inputs, target)

    def on_evaluation(self, inputs: Given, target: Given) -> int:
        """Refuse likewise what cannot be evaluated; return the number of micro-batches."""
        said = self._unusable("input", inputs, 0)
        if not said and target and target[0] is not None:
            said = self._unusable("target", target, 1)
        rows, wanted = self._agree(_EVALUATION, said, inputs, target)
        count = min(self.count, rows)
        if wanted not in (-1, rows) and (rows % count or wanted % count):
            raise TightropeError(
                f"the input has {rows} rows, the target {wanted}: they do not divide alike into {count} "
                "micro-batches. Give as many rows of both."
            )
        return count

    def _divides(self, name: str, given: Given, which: int) -> str:
        """Say why a batch does not divide into micro-batches of the planned shape."""
        said = self._unusable(name, given, which)
        if said or given is None:
            return said
        shape, count = tuple(given[0].shape), self.count
        planned = self.work.shapes[which] if len(self.work.shapes) > which else ()
        wanted = (planned[0] * count, *planned[1:]) if planned else shape
        if shape != wanted:
            return (
                f"the {name} has shape {shape}; {count} micro-batches of the planned {planned} make "
                f"{wanted}. Drop or fill a last batch, or plan anew"
            )
        rows = [one.shape[0] for one in given]
        if any(one % count for one in rows):
            return f"the {name} has {rows} rows, which do not divide into {count} micro-batches"
        return ""

    def _unusable(self, name: str, given: Given, which: int) -> str:
        """Say why what was given is no batch: not tensors with rows, or of another dtype than planned."""
        if given is None:
            return ""
        if not given or given[0] is None:
            return f"no {name} was given; give a batch"
        for one in given:
            if not isinstance(one, torch.Tensor):
                return f"the {name} is of type {type(one).__name__}; give a tensor"
            if not one.dim() or not one.shape[0]:
                return f"the {name} has shape {tuple(one.shape)}; give 1 row or more"
        planned = self.work.dtypes[which] if len(self.work.dtypes) > which else ""
        if planned and dtype_name(given[0]) != planned:
            return f"the {name} is {dtype_name(given[0])}, planned was {planned}; convert it, or plan anew"
        return ""

    def _agree(self, call: int, said: str, inputs: Given, target: Given) -> tuple[int, int]:
        mine = [bool(said), call, -call, _rows(inputs), _rows(target)]
        seen = torch.tensor(mine, dtype=torch.int64, device=self.device)
        dist.all_reduce(seen, dist.ReduceOp.MAX, group=self.group)
        refused, most, least, rows, wanted = seen.tolist()
        if most != -least:
            raise TightropeError("some ranks call step, others evaluate: let all call the same.")
        if refused:
            words: list[str] = [""] * dist.get_world_size(self.group)
            dist.all_gather_object(words, said, group=self.group)
            raise TightropeError("; ".join(f"rank {k}: {one}" for k, one in enumerate(words) if one) + ".")
        return rows, wanted


def _rows(given: Given) -> int:
    """Count rows; -1 where there are none."""
    return given[0].shape[0] if given and isinstance(given[0], torch.Tensor) and given[0].dim() else -1


def dtype_name(tensor: torch.Tensor) -> str:
    """Name a dtype as plans do.

    >>> dtype_name(torch.zeros(1))
    'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")
