"""The command `demo`, which is an entry point."""
