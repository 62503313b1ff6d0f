"""Workloads as ordinary array code, and the demonstration."""
