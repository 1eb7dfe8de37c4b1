"""The commands `lock` and `verify`, which are entry points."""
