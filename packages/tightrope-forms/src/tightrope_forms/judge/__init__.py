"""Judges of forms, which share no code with what makes them."""
