"""Look at a trace: one offline page that explains every byte."""

from tightrope.view.page import page
from tightrope.view.payload import pack_trace
from tightrope.view.sentences import sentences

__all__ = ["pack_trace", "page", "sentences"]
