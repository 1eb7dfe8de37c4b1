"""Work over time, and proof that the planned code is the code that runs."""
