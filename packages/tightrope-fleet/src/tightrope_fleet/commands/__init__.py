"""The commands `fleet`, `jobs`, `predict`, `select`, `streams` and `trees`, which are entry points."""
