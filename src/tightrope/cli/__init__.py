"""The command line: `tightrope demo`, `estimate`, `plan`, `curve`, `explain`, `judge`, `doctor`."""

from tightrope.cli.app import main

__all__ = ["main"]
