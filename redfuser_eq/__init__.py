"""Cascaded reductions to one-pass kernels, discovered by equality saturation."""
