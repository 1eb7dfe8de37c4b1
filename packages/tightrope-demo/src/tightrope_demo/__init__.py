"""Two small networks on real data, trained at full memory and at smaller budgets."""
