"""The exchange of gradients between ranks: which travel together, and by which codec."""

from typing import TYPE_CHECKING, Any

from tightrope.parallel.compress.drawing import timeline_svg
from tightrope.parallel.compress.forecast import forecast, seconds_of
from tightrope.parallel.compress.planned import planned_stream
from tightrope.parallel.compress.search import plan_exchange

if TYPE_CHECKING:
    from tightrope.parallel.compress.codecs import CODECS
    from tightrope.parallel.compress.hook import GradientExchange, compress_gradients
    from tightrope.parallel.compress.queue import Link

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


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: planning does not."""
    if name == "CODECS":
        from tightrope.parallel.compress.codecs import CODECS

        return CODECS
    if name in ("GradientExchange", "compress_gradients"):
        from tightrope.parallel.compress import hook

        return getattr(hook, name)
    if name == "Link":
        from tightrope.parallel.compress.queue import Link

        return Link
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
