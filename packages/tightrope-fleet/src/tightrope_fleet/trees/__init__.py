"""Boosted trees over parties that keep their data: rows or columns, plain, masked or encrypted, private."""
