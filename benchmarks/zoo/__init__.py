"""Nets with random weights, each with a batch, ready for one training step.

A case's model returns the scalar loss, so every net is driven by the same two lines:

    >>> case = build("unet", scale="test")
    >>> case.model(*case.inputs).backward()

Nothing is downloaded. Two scales: ``"bench"`` is sized for a CPU training step of a few tenths of a
second, ``"test"`` for a few milliseconds. Both are described, with parameter counts, in the file
that defines the net.
"""

from benchmarks.zoo import densenet, language, mobilenet, moe, resnet, tree_lstm, tricky, unet, vgg, vit
from benchmarks.zoo.case import Case, Entry, Scale, Tag, build_case, optimizer
from tightrope.core import TightropeError

__all__ = ["REGISTRY", "Case", "Entry", "Scale", "Tag", "build", "optimizer"]

_MODULES = (language, vit, resnet, vgg, unet, densenet, mobilenet, moe, tricky, tree_lstm)

REGISTRY: dict[str, Entry] = {entry.name: entry for module in _MODULES for entry in module.ENTRIES}
"""All nets by name, in the order in which tables list them."""


def build(name: str, *, seed: int = 0, scale: Scale = "bench") -> Case:
    """Build a net and its batch.

    Weights and inputs depend only on ``name``, ``seed`` and ``scale``; the global random state is
    left as it was. Dropout draws from the global random state when the model runs, so seed that
    too (``torch.manual_seed``) to repeat a training step.

    Args:
        name: a key of `REGISTRY`.
        seed: of the weights and the inputs.
        scale: ``"bench"`` or ``"test"``.

    Raises:
        TightropeError: no net or no scale has that name.

    Example:
        >>> case = build("resnet18", scale="test")
        >>> sorted(case.tags)
        ['batchnorm', 'conv', 'inplace']
    """
    if name not in REGISTRY:
        raise TightropeError(f"no net is called {name!r}; there are: {', '.join(REGISTRY)}.")
    return build_case(REGISTRY[name], seed=seed, scale=scale)
