"""A captured step per net, captured once, and the machine that it is planned for.

Commands are found by the entry points of what is installed: a folder on the path alone has none.
"""

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from tightrope.cli.machines import find_machine
from tightrope.core import Machine

if TYPE_CHECKING:
    from tightrope_micro import MicroStep

if not importlib.metadata.entry_points(group="tightrope.commands", name="micro"):
    raise pytest.UsageError("tightrope-micro is not installed: pip install -e packages/tightrope-micro")


@pytest.fixture(scope="session")
def board() -> Machine:
    """A microcontroller with an SD card."""
    return find_machine("poet-cortex-m4f")


@pytest.fixture(scope="session")
def steps() -> "dict[str, MicroStep]":
    """Every net, captured."""
    from benchmarks.micro.nets import NETS
    from tightrope_micro import capture_step

    found = {}
    for name, make in NETS.items():
        model, args, optimizer = make()
        found[name] = capture_step(model, args, optimizer)
    return found
