"""Nets of TensorFlow Lite in int8 with their weights, units and rounding."""

from tightrope_micro.tflite.net import load_tflite

__all__ = ["load_tflite"]
