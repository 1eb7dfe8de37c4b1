"""Search, placement, cuts, safety and alignment in C++; nothing here knows of torch."""
