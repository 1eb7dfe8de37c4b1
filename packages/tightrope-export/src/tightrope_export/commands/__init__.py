"""The command `export`, which is an entry point."""
