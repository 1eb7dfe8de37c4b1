"""Other forms of the same computation: fused sums over hypergraphs."""
