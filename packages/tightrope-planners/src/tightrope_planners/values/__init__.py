"""The values that placers and judges here share."""
