"""Fused stretches: ops in a row that one compiled function computes, chosen after planning.

A plan says what runs and when memory ends. Fusing keeps both: it cuts the planned list into stretches
between heavy kernels, compiles each distinct one once, and keeps those that are faster.
"""
