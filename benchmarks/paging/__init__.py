"""Steps that page to a file: their times beside recomputation alone and pages alone, and what faults do."""
