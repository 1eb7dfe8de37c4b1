"""Commands are found by the entry points of what is installed: a folder on the path alone has none."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

for folder in ("formats", "evict"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

if not importlib.metadata.entry_points(group="tightrope.commands", name="place"):
    raise pytest.UsageError("tightrope-planners is not installed: pip install -e packages/tightrope-planners")
