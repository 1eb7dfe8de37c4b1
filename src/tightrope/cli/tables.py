"""Rich, imported without a draw: its default styles take numbers from Python's generator."""

import random

_state = random.getstate()

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_state)

__all__ = ["Console", "Table", "Text"]
