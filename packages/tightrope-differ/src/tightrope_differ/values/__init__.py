"""What this plug-in finds, as plain values."""
