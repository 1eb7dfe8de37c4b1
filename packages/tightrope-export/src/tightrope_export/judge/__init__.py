"""Whether a run of a written file was what its forecast promised."""

from tightrope_export.judge.run import findings as findings

__all__ = ["findings"]
