"""Whether the code that is installed is the code that was locked, and the code that a plan was made from."""

from tightrope.integrity.environment import Environment, environment_at, running_environment
from tightrope.integrity.findings import Finding, FindingKind, Inspection
from tightrope.integrity.lock import Lock, read_lock, write_lock
from tightrope.integrity.provenance import check_provenance_of, provenance_of
from tightrope.integrity.verify import make_lock, verify_environment, verify_loaded

__all__ = [
    "Environment",
    "Finding",
    "FindingKind",
    "Inspection",
    "Lock",
    "check_provenance_of",
    "environment_at",
    "make_lock",
    "provenance_of",
    "read_lock",
    "running_environment",
    "verify_environment",
    "verify_loaded",
    "write_lock",
]
