"""Whether the smallest budget that is named is one that trains."""
