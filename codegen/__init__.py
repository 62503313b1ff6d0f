"""The tile-level Kernel IR and its printers."""
