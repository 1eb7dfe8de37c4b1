"""The exchange of gradients between ranks: which travel together, and by which codec.

What needs torch is imported when it is first used: planning does not.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily
from tightrope_ranks.compress.drawing import timeline_svg
from tightrope_ranks.compress.forecast import forecast, seconds_of
from tightrope_ranks.compress.planned import planned_stream
from tightrope_ranks.compress.search import plan_exchange

if TYPE_CHECKING:
    from tightrope_ranks.compress.codecs import CODECS
    from tightrope_ranks.compress.hook import GradientExchange, compress_gradients
    from tightrope_ranks.compress.queue import Link

__getattr__ = lazily(
    __name__,
    {"CODECS": "codecs", "GradientExchange": "hook", "Link": "queue", "compress_gradients": "hook"},
)

__all__ = [
    "CODECS",
    "GradientExchange",
    "Link",
    "compress_gradients",
    "forecast",
    "plan_exchange",
    "planned_stream",
    "seconds_of",
    "timeline_svg",
]
