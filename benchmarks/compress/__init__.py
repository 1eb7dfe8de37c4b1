"""The exchange of gradients: planned messages against brute force, simple divisions and real links."""
