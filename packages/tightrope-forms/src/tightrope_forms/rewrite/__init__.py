"""Equal forms of captured graphs: rules, e-graphs, and exact extraction."""
