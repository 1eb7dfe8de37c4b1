"""Build every native source of the package: ``python -m tightrope.native``."""

import sys
import time

from tightrope.core import NativeError
from tightrope.native.build import compiler, library, sources


def main() -> int:
    """Build what is not in the cache and print one line each; return the exit status."""
    if compiler() is None:
        print("no C++ compiler found: plans are made more slowly, and budgets are checked, not enforced.")
        return 0
    for name in sources():
        start = time.perf_counter()
        try:
            path = library(name)
        except NativeError as error:
            print(f"{name:<10} failed: {error}", file=sys.stderr)
            return 1
        print(f"{name:<10} {time.perf_counter() - start:6.2f} s  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
