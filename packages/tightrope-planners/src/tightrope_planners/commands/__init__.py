"""The commands of this plug-in."""
