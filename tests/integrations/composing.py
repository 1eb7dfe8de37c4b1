"""What goes together: `python -m tests.integrations.composing` plays all cells of docs/limits.md."""

import functools
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

import tightrope
from tests.integrations import owned_loops
from tests.integrations.owned_loops import NUM_STEPS, Task, sharded
from tests.run.training import Seen, budget_for
from tightrope.capture._torch import reset_dynamo
from tightrope.core import InfeasibleError
from tightrope.run.ledger.accounts import accounts

PAGE: Final = Path(__file__).parents[2] / "docs" / "limits.md"
ROWS: Final[dict[str, Callable[[Task], nn.Module]]] = {
    "a loop of your own": owned_loops.plain,
    '`torch.compile(model, backend="tightrope")`': partial(owned_loops.plain, by_name=True),
    "accelerate, compiled before `prepare`": partial(owned_loops.accelerate, before=True),
    "accelerate, compiled after `prepare`": partial(owned_loops.accelerate, before=False),
    "`Trainer` of transformers": owned_loops.transformers,
    "`Trainer` of Lightning": owned_loops.lightning,
    "`DistributedDataParallel`, 2 processes": partial(owned_loops.plain, wrap=DistributedDataParallel),
    "`fully_shard` of the model, 2 processes": partial(
        owned_loops.plain, wrap=partial(sharded, blocks=False)
    ),
    "`fully_shard` of each block, 2 processes": partial(
        owned_loops.plain, wrap=partial(sharded, blocks=True)
    ),
}
COLUMNS: Final = (
    "training",
    "accumulation",
    "clipping",
    "bf16 autocast",
    "LoRA",
    "evaluation",
    "save, resume",
    "torch's checkpoint",
)
MOST_PLANS: Final = 4
"""Of one loop: two that find out what it reads and holds, one that knows, and one for evaluation."""
MOST_OF_CALLS: Final = 12
"""The same where a step is several calls: each is planned by itself until their order is known."""
EXTRA: Final = 1 << 20
"""Bytes that a loop may hold beside a step: the update, and batches that are fetched ahead."""
NOT_TRIED: Final = "not tried"
_HEAD: Final = "\n|  | "
"""What the head of the table begins with, and no other table of the page."""
Cells = Mapping[tuple[str, str], str]


def outcome(row: str, column: str, folder: Path, num_steps: int = NUM_STEPS) -> str:
    """Run one loop without and with a budget, and say how they compare.

    Raises:
        AssertionError: the budget was not held, or it was no limit, or every step was planned anew, or there
            were not as many updates as the page says.
    """
    reset_dynamo()  # compiled code refers to its model
    gc.collect()
    with accounts().unlimited(), updates(num_steps):
        wanted, _ = _played(row, Task(column, Seen(), folder / "plain", None, num_steps))
    budget = accounts().charged() + _room(column) + EXTRA
    native = accounts().allocator
    assert native is not None
    native.reset_peaks()
    accounts().take_peak()
    try:
        with updates(num_steps):
            found, model = _played(row, Task(column, Seen(), folder / "planned", budget, num_steps))
    except InfeasibleError:
        return "refused"
    assert accounts().take_peak() <= budget  # updates, evaluation and what was saved included
    _check(model, MOST_OF_CALLS if "fully_shard" in row else MOST_PLANS)
    assert len(wanted) == len(found) > num_steps
    different = sum(a != b for a, b in zip(wanted, found, strict=True))
    return f"{different} of {len(found)} values differ" if different else "equal"


@contextmanager
def updates(number: int) -> Iterator[None]:
    """Count the updates of all optimizers."""
    seen: list[torch.optim.Optimizer] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    try:
        yield
    finally:
        hook.remove()
    assert len(seen) == number


def outcomes_of_two(cells: Sequence[tuple[str, str]], folder: Path, num_steps: int = NUM_STEPS) -> list[str]:
    """Run loops in two processes that meet in the folder; say of each what both found."""
    torch.multiprocessing.spawn(_process, args=(cells, folder, num_steps), nprocs=2)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return [" and ".join(sorted(set(pair))) for pair in zip(*found, strict=True)]


def _process(rank: int, cells: Sequence[tuple[str, str]], folder: Path, num_steps: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = []
    for number, (row, column) in enumerate(cells):
        mine = folder / f"{number} of {rank}"
        mine.mkdir()
        found.append(outcome(row, column, mine, num_steps))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def run_cell(row: str, column: str, folder: Path) -> str:
    """Run one cell of the table in as many processes as it takes."""
    return (
        outcomes_of_two([(row, column)], folder)[0] if "2 processes" in row else outcome(row, column, folder)
    )


def _played(row: str, task: Task) -> tuple[list[str], nn.Module]:
    task.folder.mkdir()
    torch.manual_seed(7)
    model = ROWS[row](task)
    task.see.all(model)
    return task.see.bits, model


@functools.cache
def _room(column: str) -> int:
    """Bytes of a step: the smallest found, and 30 % of what it would take beyond without a plan."""
    task = Task(column, Seen(), Path(), None)
    model, batch = task.build(), task.data()[0]
    with task.autocast:
        return budget_for(model, (), batch, share=0.3) - accounts().charged()


def _check(model: nn.Module, most_plans: int) -> None:
    report = tightrope.report(model)
    assert report.level == "L1", report.why
    assert report.enforced
    assert report.limit == report.budget
    assert 0 < report.observed_total <= report.budget
    assert report.divergences == 0
    assert any(proof.num_again for proof in report.proofs)
    assert len(report.proofs) <= most_plans, [proof.cause for proof in report.proofs]


def page_with(cells: Cells) -> str:
    """The page with these cells in its table."""
    before, rest = PAGE.read_text().split(_HEAD, 1)
    _, after = rest.split("\n\n", 1)
    lines = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    lines += [[row, *(cells[row, column] for column in COLUMNS)] for row in ROWS]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{before}\n{table}\n\n{after}"


def cells_of(page: str) -> dict[tuple[str, str], str]:
    """The cells of the table."""
    head, _, *lines = page.split(_HEAD, 1)[1].split("\n\n", 1)[0].splitlines()
    columns = [cell.strip() for cell in head.split("|")[:-1]]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {(row[0], column): cell for row in rows for column, cell in zip(columns, row[1:], strict=True)}


def main(row_part: str = "", column_part: str = "") -> None:
    """Run the cells whose row and column have these parts in their names, by default all; write the page."""
    torch.set_num_threads(1)
    found = cells_of(PAGE.read_text())
    for row, column in product(ROWS, COLUMNS):
        if row_part in row and column_part in column:
            with tempfile.TemporaryDirectory() as folder:
                found[row, column] = run_cell(row, column, Path(folder))
            print(f"{row}, {column}: {found[row, column]}", file=sys.stderr, flush=True)
    PAGE.write_text(page_with(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
