"""Nested tuples, lists and dicts of arrays, as arguments and as results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tree:
    """kind: "leaf" (an array), "static" (a value that is none), or the container's type. keys: of a dict."""

    kind: Any
    children: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()
    value: Any = None

    def build(self, leaves: Iterator[Any]) -> Any:
        """The structure with leaves in order."""
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "static":
            return self.value
        items = [c.build(leaves) for c in self.children]
        if issubclass(self.kind, dict):
            return self.kind(zip(self.keys, items, strict=True))
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)


LEAF = Tree("leaf")


def is_array(value: Any) -> bool:
    """Anything with a shape and a dtype that is no scalar of NumPy's."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, (np.generic, type))


def flatten_tree(value: Any, leaf: Callable[[Any], bool], path: str = "") -> tuple[list[tuple[str, Any]], Tree]:
    """(path, array) for each array in order, and the structure."""
    if leaf(value):
        return [(path, value)], LEAF
    if isinstance(value, dict):
        pairs = [(k, flatten_tree(v, leaf, f"{path}_{k}")) for k, v in value.items()]
        found = [item for _, (items, _) in pairs for item in items]
        return found, Tree(type(value) if type(value) is dict else dict, tuple(t for _, (_, t) in pairs), tuple(k for k, _ in pairs))
    if isinstance(value, (tuple, list)):
        parts = [flatten_tree(v, leaf, f"{path}_{i}") for i, v in enumerate(value)]
        return [item for items, _ in parts for item in items], Tree(type(value), tuple(t for _, t in parts))
    return [], Tree("static", value=value)


def identifiers(names: list[str]) -> list[str]:
    """The names as distinct identifiers."""
    out: list[str] = []
    for n in names:
        base = re.sub(r"\W", "_", n, flags=re.ASCII)
        base = base if re.match(r"[A-Za-z_]", base) else f"_{base}"
        name, i = base, 2
        while name in out:
            name, i = f"{base}_{i}", i + 1
        out.append(name)
    return out
