"""What may differ between a model as it was trained and as it runs, and by how much."""
