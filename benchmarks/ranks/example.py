"""The example of tightrope-ranks, which lies beside the plug-in and in no package."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

FILE: Final = (
    Path(__file__).parents[2] / "packages" / "tightrope-ranks" / "examples" / "gpt2_on_four_ranks.py"
)


def load_example() -> Any:
    """Load the file as a module of its own name."""
    spec = spec_from_file_location(FILE.stem, FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[FILE.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
