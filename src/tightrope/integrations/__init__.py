"""Doors into other frameworks; each is imported only when it is used."""
