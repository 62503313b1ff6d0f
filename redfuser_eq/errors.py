"""The errors a user can meet. Each message names the operation, the argument and the remedy."""

from __future__ import annotations


class RedfuserError(Exception):
    """Base class of every error this package raises on purpose."""


class TraceError(RedfuserError, TypeError):
    """The array code uses something that cannot be traced (an operation, control flow on values)."""


class ShapeError(RedfuserError, ValueError):
    """Shapes do not fit together, or an axis is out of range."""


class DTypeError(RedfuserError, TypeError):
    """A dtype has no meaning here."""


class UnsoundRewrite(RedfuserError, AssertionError):
    """Translation validation found that a rewritten program does not compute the original expression."""


class IRError(RedfuserError, AssertionError):
    """An intermediate program violates its grammar: a bug in this package or in a user's rules."""


class BackendError(RedfuserError, RuntimeError):
    """A target is not available or its build failed."""


class UnsoundRewriteWarning(UserWarning):
    """A rewritten program failed validation; the unfused program is used instead."""
