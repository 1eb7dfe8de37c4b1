"""What several plug-ins use, and the core does not: a module for each."""
