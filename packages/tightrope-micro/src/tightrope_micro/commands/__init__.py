"""The command `micro`, which is an entry point, and those below it."""
