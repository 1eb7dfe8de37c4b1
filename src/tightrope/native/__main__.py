"""Build every native source of the package: ``python -m tightrope.native``."""

import sys
import time

from tightrope.core import NativeError
from tightrope.native.build import build, compiler, library, sources
from tightrope.native.prebuilt import prebuilt


def main() -> int:
    """Build what is not in the cache and print one line each; return the exit status."""
    if compiler() is None and prebuilt("allocator") is None:
        print("no C++ compiler found: plans are made in Python, and budgets are checked, not enforced.")
        return 0
    start = time.perf_counter()
    build(sources())
    for name in sources():
        try:
            print(f"{name:<10} {library(name)}")
        except NativeError as error:
            print(f"{name:<10} failed: {error}", file=sys.stderr)
            return 1
    print(f"built or found in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
