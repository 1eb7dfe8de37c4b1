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


def settings(engine: str, members: Sequence[str]) -> Iterator[tuple[Form, str]]:
    """Settings of ``torchtitan`` or ``megatron`` for a list of layers, each with the form that it means."""
    layers = tuple(map(AgainRegion, members))
    if engine == "megatron":
        yield (), ""
        for num in range(1, len(layers) + 1):
            flags = "--recompute-granularity full --recompute-method block --recompute-num-layers"
            yield layers[:num], f"{flags} {num}\n"
        return
    yield (), 'mode = "none"\n'
    yield layers, 'mode = "full"\n'
    for every in range(2, len(layers) + 1):
        yield layers[every - 1 :: every], f'mode = "selective"\nselective_ac_option = "{every}"\n'


def choose_setting(search: Search, engine: str) -> tuple[ChosenForm, str]:
    """Choose the fastest setting whose forecast holds the budget, for the longest list of layers.

    Returns:
        What it means here, and the text of the setting.

    Raises:
        TightropeError: the model has no list whose members can all be computed again.
        InfeasibleError: no setting holds the budget; has the smallest.
    """
    full = search.walker.tape.lists
    whole = {name: members for name, members in search.lists.items() if len(members) == len(full[name])}
    if not whole:
        raise TightropeError(f"no list of layers could be recomputed by {engine}: use --to blocks.")
    layers = max(whole, key=lambda name: (len(whole[name]), sum(map(search.weight, whole[name]))))
    form, text = min(settings(engine, whole[layers]), key=lambda one: search.rank(one[0]))
    return search.checked(form, layers), text
