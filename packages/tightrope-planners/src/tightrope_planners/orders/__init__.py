"""Other orders of first runs, alone and joined with recomputation."""
