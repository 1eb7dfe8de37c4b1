"""Settings of engines that choose layers by a count: the form that each setting means here, and its text.

Sources: torchtitan's section ``activation_checkpoint`` (``mode``, ``selective_ac_option``; every n-th layer
is counted from one), and Megatron's ``--recompute-granularity full --recompute-method block``, which computes
the first n layers of a stage again. Neither engine runs here: figures are those of the same layers in plain
PyTorch, with torch's own checkpoints.
"""

from collections.abc import Iterator, Sequence

from tightrope.core import TightropeError
from tightrope_export.choose import ChosenForm, Search
from tightrope_export.values.form import AgainRegion, Form


def torchtitan(members: Sequence[str]) -> Iterator[tuple[Form, str]]:
    """Settings of torchtitan for a list of layers, each with the form that it means."""
    yield (), 'mode = "none"\n'
    yield tuple(map(AgainRegion, members)), 'mode = "full"\n'
    for every in range(2, len(members) + 1):
        form = tuple(AgainRegion(path) for path in members[every - 1 :: every])
        yield form, f'mode = "selective"\nselective_ac_option = "{every}"\n'


def megatron(members: Sequence[str]) -> Iterator[tuple[Form, str]]:
    """Settings of Megatron for a list of layers, each with the form that it means."""
    yield (), ""
    for num in range(1, len(members) + 1):
        flags = f"--recompute-granularity full --recompute-method block --recompute-num-layers {num}\n"
        yield tuple(map(AgainRegion, members[:num])), flags


def choose_setting(search: Search, engine: str) -> tuple[ChosenForm, str]:
    """Choose the fastest setting whose forecast holds the budget, for the longest list of layers.

    Returns:
        What it means here, and the text of the setting.

    Raises:
        TightropeError: the model has no list whose members can all be computed again.
        InfeasibleError: no setting holds the budget; has the smallest.
    """
    whole = {
        name: members
        for name, members in search.lists.items()
        if len(members) == len(search.tape.lists[name])
    }
    if not whole:
        raise TightropeError(
            f"the model has no list of layers that {engine} could recompute: use --to blocks."
        )
    layers = max(whole, key=lambda name: (len(whole[name]), sum(map(search.weight, whole[name]))))
    settings = [*(torchtitan if engine == "torchtitan" else megatron)(whole[layers])]
    form, text = min(settings, key=lambda one: search.rank(one[0]))
    return search.checked(form, layers), text
