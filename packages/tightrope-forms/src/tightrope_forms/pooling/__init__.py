"""Maximum pools that keep a byte per result."""
