"""One compiled model: which call runs what, from its first capture to its steady steps."""
