"""The command `ranks`, which is an entry point."""
