"""The exchange of gradients between ranks: which travel together, and by which codec.

What needs torch is imported when it is first used: planning does not.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily
from tightrope.parallel.compress.drawing import timeline_svg
from tightrope.parallel.compress.forecast import forecast, seconds_of
from tightrope.parallel.compress.planned import planned_stream
from tightrope.parallel.compress.search import plan_exchange

if TYPE_CHECKING:
    from tightrope.parallel.compress.codecs import CODECS
    from tightrope.parallel.compress.hook import GradientExchange, compress_gradients
    from tightrope.parallel.compress.queue import Link

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
