"""Fleets of devices: who can take part, what a training takes, whether to go; rounds on a virtual clock."""
