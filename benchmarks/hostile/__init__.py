"""Small loops of the kinds that users report as broken, played as they are and under a budget."""
