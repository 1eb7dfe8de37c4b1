"""`python -m tightrope`, for environments whose scripts are not on the path."""

from tightrope.cli import main

main()
