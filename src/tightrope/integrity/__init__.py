"""What is installed, and the code that a plan was made from: written down, and compared before it runs."""

from tightrope.core.lazy import lazily
from tightrope.integrity.environment import Environment, environment_at, running_environment
from tightrope.integrity.findings import Finding, FindingKind, Inspection
from tightrope.integrity.provenance import demand_code_of, provenance_of

__getattr__ = lazily(
    __name__,
    {},
    moved={
        "verify": (
            "Lock", "check_provenance_of", "make_lock", "read_lock", "verify_environment", "verify_loaded",
            "write_lock",
        )
    },
)  # fmt: skip

__all__ = [
    "Environment",
    "Finding",
    "FindingKind",
    "Inspection",
    "demand_code_of",
    "environment_at",
    "provenance_of",
    "running_environment",
]
