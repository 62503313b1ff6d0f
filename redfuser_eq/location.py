"""Where in the user's code an error comes from."""

from __future__ import annotations

import linecache
import sys

Line = tuple[str, int]
_INSIDE = frozenset({"redfuser_eq", "numpy", "scipy", "torch", "array_api_compat", "functools", "contextlib"})


def user_line() -> Line | None:
    """File and number of the innermost line that is neither this package's nor an array library's."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _INSIDE:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def at(line: Line | None) -> str:
    """The end of an error message: file, line number and the text of the line."""
    if line is None:
        return ""
    text = linecache.getline(*line).strip()
    return f"\n  at {line[0]}:{line[1]}" + (f": {text}" if text else "")


def here() -> str:
    return at(user_line())
