"""Whether the code that is installed is the code that was locked, and the code that a plan was made from."""

from tightrope_verify.captured import provenance_of
from tightrope_verify.environment import Environment, environment_at, running_environment
from tightrope_verify.findings import Finding, FindingKind, Inspection
from tightrope_verify.lock import Lock, read_lock, write_lock
from tightrope_verify.provenance import check_provenance_of
from tightrope_verify.verify import make_lock, verify_environment, verify_loaded

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
