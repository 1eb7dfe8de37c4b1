"""Other forms of the same computation: sums over hypergraphs, and rewritten models."""
