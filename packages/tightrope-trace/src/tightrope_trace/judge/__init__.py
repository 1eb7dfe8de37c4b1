"""An independent checker of what a run of a plan left behind."""
