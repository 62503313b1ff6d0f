"""Rule sets, one theme a file."""
