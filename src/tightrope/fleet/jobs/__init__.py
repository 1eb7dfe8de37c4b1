"""Jobs with predicted lifetimes."""
