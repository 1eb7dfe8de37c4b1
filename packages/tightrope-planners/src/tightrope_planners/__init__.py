"""Planners of the literature, files of others, and placement beyond one arena, as a plug-in of Tightrope."""
