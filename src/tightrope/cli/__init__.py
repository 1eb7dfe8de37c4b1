"""The command line: `tightrope estimate`, `plan`, `curve`, `explain`, `judge`, `doctor`."""

from tightrope.cli.app import main

__all__ = ["main"]
