"""Where pages lie in a slower tier.

Idea        First fit, in the order in which page-outs begin: what is written last is as a rule read first, so
            lifetimes are nested and nothing is wasted.
Guarantee   No two pages that are held at once share a byte. Equal executables give equal addresses.
Complexity  Pages times pages that are held at once.
"""

from tightrope.core import Alloc, Bytes, Executable, Offset, Release
from tightrope.core.executable import SLOWER


def page_offsets(executable: Executable) -> dict[int, Offset]:
    """Give every buffer in a slower tier its address there.

    Returns:
        Offset by number of the buffer.
    """
    held: dict[int, tuple[int, Offset, Bytes]] = {}
    found: dict[int, Offset] = {}
    for event in executable.instructions:
        if isinstance(event, Release):
            held.pop(event.buffer, None)
        elif isinstance(event, Alloc) and event.space >= SLOWER:
            size, at = executable.charged(event), 0
            for space, offset, taken in sorted(held.values()):
                if space == event.space:
                    if offset - at >= size:
                        break
                    at = max(at, offset + taken)
            held[event.buffer] = event.space, at, size
            found[event.buffer] = at
    return found
