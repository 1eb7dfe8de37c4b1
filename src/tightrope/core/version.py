"""The version of this package, for files that say who wrote them."""

from typing import Final

VERSION: Final = "0.1.0"
