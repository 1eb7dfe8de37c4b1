"""Bars of the executable: what runs was judged, and only what is right is accepted."""
