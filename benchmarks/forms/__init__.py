"""Speed and bytes of other forms of the same computation, against what people use."""
