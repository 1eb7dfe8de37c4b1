"""Experts of models of transformers: ``register()``, then ``experts_implementation="tightrope"``."""

from typing import Any

from torch import Tensor

from tightrope.core import TightropeError
from tightrope_experts.layer import mix
from tightrope_experts.layout import check_count
from tightrope_experts.sizes import ROWS


def register(rows: int = ROWS) -> None:
    """Offer models of transformers these experts, under the name ``"tightrope"``.

    Args:
        rows: multiplied at once, at most.

    Raises:
        TightropeError: transformers is missing, or has no interface for experts; nothing is registered.
    """
    check_count("rows", rows, low=1)
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as error:
        raise TightropeError(
            "transformers with an interface for experts is not installed: pip install 'transformers>=5'."
        ) from error

    def forward(experts: Any, x: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        if experts.has_post_expert_norm:
            raise TightropeError(
                f"{type(experts).__name__} normalises each expert's result, which is not supported. Use "
                'experts_implementation="grouped_mm".'
            )
        name = "gate_up_proj" if experts.has_gate else "up_proj"
        up, activation = getattr(experts, name), experts._apply_gate if experts.has_gate else experts.act_fn
        biases = (
            (getattr(experts, f"{name}_bias"), experts.down_proj_bias) if experts.has_bias else (None, None)
        )
        up, down = (one.mT if experts.is_transposed else one for one in (up, experts.down_proj))
        return mix(x, chosen, gates, up, down, activation, biases=biases, rows=rows)

    ALL_EXPERTS_FUNCTIONS.register("tightrope", forward)
