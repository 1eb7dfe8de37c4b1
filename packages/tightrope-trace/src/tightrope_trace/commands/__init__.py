"""The commands `trace` and `record`, which are entry points."""
