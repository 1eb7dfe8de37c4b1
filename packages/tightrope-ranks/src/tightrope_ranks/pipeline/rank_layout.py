"""How ranks are divided: the numbers of a layout, and its name for people."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How ranks are divided.

    Attributes:
        pipeline: P, ranks that stages live on.
        replicas: R, ranks that do the same on other data.
        micro_batches: of a step, per replica.
        again: layers that are computed again in the backward, inside of their stages.
        by_layer: whether divided parameters are gathered layer by layer, whenever a layer runs, and not once
            per step and stage.
        tensor: T, ranks that divide every layer.
        expert: X, ranks that divide experts, of those that hold the same other parameters.
        context: C, ranks that divide the sequence. Rank p of the pipeline is devices p R C T to
            (p + 1) R C T - 1; ranks of one tensor group are neighbours, then those of one sequence.
    """

    pipeline: int
    replicas: int
    micro_batches: int
    again: int = 0
    by_layer: bool = False
    tensor: int = 1
    context: int = 1
    expert: int = 1

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Pipeline, replicas, context and tensor; the last are neighbours."""
        return self.pipeline, self.replicas, self.context, self.tensor

    @property
    def alike(self) -> int:
        """Ranks that hold the same parameters, and may divide them."""
        return self.replicas * self.context

    def devices(self, rank: int) -> tuple[int, int]:
        """Return the first and the last device of a rank of the pipeline.

        >>> RankLayout(2, 2, 1, tensor=4).devices(1)
        (8, 15)
        """
        size = self.alike * self.tensor
        return rank * size, (rank + 1) * size - 1


def layout_said(layout: RankLayout) -> str:
    """Name a layout for people.

    >>> layout_said(RankLayout(2, 4, 8, tensor=8))
    'a pipeline of 2 and 4 replicas, of 8 tensor ranks each'
    """
    inner = [f"{layout.tensor} tensor"] * (layout.tensor > 1) + [f"{layout.context} context"] * (
        layout.context > 1
    )
    more = f", of {' and '.join(inner)} ranks each" if inner else ""
    more += f", experts divided among {layout.expert}" if layout.expert > 1 else ""
    return f"a pipeline of {layout.pipeline} and {layout.replicas} replicas{more}"
