"""Training steps on microcontrollers: RAM, pages, instructions, weights."""
