"""Commands are found by the entry points of what is installed: a folder on the path alone has none."""

import importlib.metadata

import pytest

if not importlib.metadata.entry_points(group="tightrope.commands", name="demo"):
    raise pytest.UsageError("tightrope-demo is not installed: pip install -e packages/tightrope-demo")
