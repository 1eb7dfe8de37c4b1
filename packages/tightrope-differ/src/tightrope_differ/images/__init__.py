"""Calls of image libraries, and what may answer in their place."""
