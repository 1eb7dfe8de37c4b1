"""Check the memories of an executable."""

from tightrope.core import Executable, Graph, JudgeError, Machine, Space
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER

_LARGEST = 2**62


def check_spaces(graph: Graph, executable: Executable, machine: Machine | None) -> None:
    """Refuse spaces that are not those of the graph's machine.

    The caller's space, the arena and the heap lie in fast memory and have the graph's alignment; each
    slower tier is a space of its own, with the tier's bytes and alignment.

    Without a machine there is no slower tier.

    Raises:
        JudgeError: names the space.
    """
    spaces = executable.spaces
    if len(spaces) < SLOWER:
        raise JudgeError(f"spaces: {len(spaces)}; there are at least a caller's, an arena and a heap.")
    for name, space in (("caller", spaces[CALLER]), ("arena", spaces[ARENA]), ("heap", spaces[HEAP])):
        if space.name != name or space.tier != 0 or space.alignment != graph.alignment:
            raise JudgeError(
                f"spaces: {space.name!r} in tier {space.tier} with alignment {space.alignment}; {name!r} in "
                f"tier 0 with alignment {graph.alignment} stands there."
            )
    tiers = () if machine is None else machine.tiers[1:]
    device = spaces[CALLER].device if machine is None else machine.device
    slower = tuple(Space(t.name, t.bytes, t.alignment, k, device) for k, t in enumerate(tiers, 1))
    if spaces[SLOWER:] != slower:
        whose = "none, because no machine is given" if machine is None else f"the tiers of {machine.name!r}"
        raise JudgeError(f"spaces: the slower ones are {len(spaces) - SLOWER} others than {whose}.")
    if any(space.device != device for space in spaces):
        raise JudgeError(f"spaces: {device!r} is the device of the first; another one lies elsewhere.")
    if any(not 0 <= space.capacity <= _LARGEST or space.alignment < 1 for space in spaces):
        raise JudgeError("spaces: a capacity or an alignment is out of range.")
