"""Joint search over recomputation and copies in a slower tier."""
