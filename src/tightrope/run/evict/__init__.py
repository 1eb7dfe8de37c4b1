"""A budget for code that is not planned: what is evicted is computed again when it is read."""
