"""A captured step per net, captured once, and the machine that it is planned for."""

import pytest

from benchmarks.micro.nets import NETS
from tightrope.cli.machines import find_machine
from tightrope.core import Machine
from tightrope.micro import MicroStep, capture_step


@pytest.fixture(scope="session")
def board() -> Machine:
    """A microcontroller with an SD card."""
    return find_machine("poet-cortex-m4f")


@pytest.fixture(scope="session")
def steps() -> dict[str, MicroStep]:
    """Every net, captured."""
    found = {}
    for name, make in NETS.items():
        model, args, optimizer = make()
        found[name] = capture_step(model, args, optimizer)
    return found
