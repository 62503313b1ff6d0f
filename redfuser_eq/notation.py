"""Mathematical notation for people: expressions and laws as plain text, wrapped to a width.

`formula` prints an `Expr` with as few parentheses as precedence allows and with names in place of shared
subexpressions; `law_text` and `condition_text` print the shorthand that rules are written in (`redfuser_eq.terms`).
In both, `sum_k(b)` reduces b over k and `x'` is the value of x before the present tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .expr import Acc, Cast, Const, Expr, Index, Load, Map, Prev, Reduce, nodes
from .terms import Sexp, parse

_INFIX = {
    "logical_or": ("or", 1),
    "logical_and": ("and", 2),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "add": ("+", 4),
    "sub": ("-", 4),
    "mul": ("*", 5),
    "div": ("/", 5),
}
_NEGATION, _POWER, _ATOM = 6, 7, 8
_LONG = 14  # a shared subexpression at least this long gets a name

Text = tuple[str, int]  # a rendered term and how tightly it binds


def _infix(symbol: str, level: int, left: Text, right: Text) -> Text:
    a = left[0] if left[1] >= level + (level == 3) else f"({left[0]})"
    b = right[0] if right[1] > level and not right[0].startswith("-") else f"({right[0]})"
    return f"{a} {symbol} {b}", level


def _prefix(symbol: str, level: int, arg: Text) -> Text:
    return f"{symbol}{arg[0] if arg[1] >= _ATOM else f'({arg[0]})'}", level


def _square(arg: Text) -> Text:
    return (f"{arg[0]}^2" if arg[1] >= _ATOM and not arg[0].startswith("-") else f"({arg[0]})^2"), _POWER


def number(value: float) -> str:
    """A constant, short."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def formula(e: Expr, names: Mapping[Expr, str] | None = None) -> str:
    """An expression on one line; `names` replaces subexpressions (but not `e` itself)."""
    names = names or {}
    memo: dict[Expr, Text] = {}
    for node in nodes(e):
        memo[node] = (names[node], _ATOM) if node in names and node is not e else _node(node, [memo[a] for a in node.args])
    return memo[e][0]


def _node(e: Expr, args: list[Text]) -> Text:
    if isinstance(e, Load):
        return (f"{e.source}[{','.join(e.dims)}]" if e.dims else e.source), _ATOM
    if isinstance(e, Const):
        return number(e.value), _ATOM if e.value >= 0 else _NEGATION
    if isinstance(e, Index):
        return f"#{e.axis}", _ATOM
    if isinstance(e, Acc):
        return (e.name if e.field == "value" else f"{e.name}.{e.field}"), _ATOM
    if isinstance(e, Prev):
        return f"{e.name}'", _ATOM
    if isinstance(e, Cast):
        return f"{e.dtype}({args[0][0]})", _ATOM
    if isinstance(e, Reduce):
        return f"{e.op}{e.k or ''}_{e.axis}({args[0][0]})", _ATOM
    assert isinstance(e, Map)
    if e.op in _INFIX:
        return _infix(*_INFIX[e.op], *args)
    if e.op == "neg":
        return _prefix("-", _NEGATION, args[0])
    if e.op == "logical_not":
        return _prefix("not ", _NEGATION, args[0])
    if e.op == "square":
        return _square(args[0])
    return f"{e.op}({', '.join(a for a, _ in args)})", _ATOM


def shared(roots: Iterable[Expr], taken: Iterable[str]) -> dict[Expr, str]:
    """Names for the long subexpressions that occur more than once below the roots, children first."""
    roots = list(roots)
    uses = Counter(roots)
    for e in nodes(*roots):
        uses.update(e.args)
    out: dict[Expr, str] = {}
    used = set(taken)
    for e in nodes(*roots):
        if uses[e] > 1 and e.args and len(formula(e, out)) >= _LONG:
            n = next(n for n in range(1, len(used) + 2) if f"x{n}" not in used)
            out[e] = f"x{n}"
            used.add(out[e])
    return out


def wrap(text: str, width: int) -> list[str]:
    """Break a long line at spaces, where fewest parentheses are open; a word that fits nowhere is cut."""
    lines = []
    while len(text) > width:
        cut = _break(text, width)
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*lines, text]


def _break(text: str, width: int) -> int:
    depth, best = 0, (10**9, width)
    for n, ch in enumerate(text[: width + 1]):
        if ch in "([":
            depth += 1
        elif ch in ")]":
            depth -= 1
        elif ch == " " and n and depth - n / width * 2 <= best[0]:
            best = (depth - n / width * 2, n)  # type: ignore[assignment]
    return best[1]


# ---- laws
_WORDS = {"zero": "0", "one": "1", "-one": "-1", "two": "2"}
_ORDER = {"=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_INFIX_TERMS = {**_INFIX, "LAdd": ("+", 4), "LMul": ("*", 5), "+": ("+", 4), "*": ("*", 5)}


def law_text(statement: str) -> str:
    """A rule's statement: `before -> after` or `facts => actions`."""
    for arrow in (" -> ", " => "):
        before, found, after = statement.partition(arrow)
        if found:
            return f"{_all(before)}{arrow}{_all(after)}"
    return _all(statement)


def condition_text(when: str) -> str:
    """A rule's side conditions, as one line of words."""
    return _all(when)


def _all(text: str) -> str:
    return "; ".join(dict.fromkeys(_term(e)[0] for e in parse(text)))


def _term(e: Sexp) -> Text:
    if isinstance(e, str):
        word = _WORDS.get(e, e.strip('"'))
        return word, _ATOM if not word.startswith("-") else _NEGATION
    if not e:
        return "()", _ATOM
    head, args = e[0], [_term(a) for a in e[1:]]
    if not isinstance(head, str):
        return f"({' '.join(_term(a)[0] for a in e)})", _ATOM
    if head in _INFIX_TERMS and len(args) == 2:
        return _infix(*_INFIX_TERMS[head], *args)
    if head in _ORDER and len(args) == 2:
        return f"{args[0][0]} {_ORDER[head]} {args[1][0]}", 0
    if head == "neg" and len(args) == 1:
        return _prefix("-", _NEGATION, args[0])
    if head == "square" and len(args) == 1:
        return _square(args[0])
    return _special(head, [a for a, _ in args]) or (f"{head.lstrip('!')}({', '.join(a for a, _ in args)})", _ATOM)


def _special(head: str, a: list[str]) -> Text | None:
    match head, a:
        case "Num", [x]:
            return x, _ATOM
        case (("U" | "B" | "W"), [f, *rest]):
            return (f"where({', '.join(a)})" if head == "W" else f"{f}({', '.join(rest)})"), _ATOM
        case "R", [f, k, b]:
            return f"{f}_{k}({b})", _ATOM
        case (("sum" | "prod" | "max" | "min" | "any" | "all"), [k, b]):
            return f"{head}_{k}({b})", _ATOM
        case "count", [k]:
            return f"count_{k}", _ATOM
        case "Prev", [f, k, b]:
            return f"{f}_{k}({b})'", _ATOM
        case "Rebase", [f, k, b]:
            return f"rebased {f}_{k}({b})", 0
        case "Scan", [_, _, _, old]:
            return f"streamed from {old}", 0
        case "Proj", [field, _, state]:
            return f"{field}({state})", _ATOM
        case (("Old" | "Delta" | "Shift" | "SumPrev"), [k, b]):
            return f"{ {'SumPrev': 'previous'}.get(head, head.lower()) }_{k}({b})", _ATOM
        case "Term", [c, b]:
            return f"[{c}]*old({b})", _ATOM
        case "LSum", [k, b]:
            return f"sum_{k}({b})", _ATOM
        case "LSel", [p, b]:
            return f"where({p}, {b}, 0)", _ATOM
    return _fact(head, a)


def _fact(head: str, a: list[str]) -> Text | None:
    words = {
        ("dep", 2): "{1} varies over {0}",
        ("indep", 2): "{1} is free of {0}",
        ("static", 2): "{1} holds no reduction over {0}",
        ("dynamic", 2): "{1} holds a reduction over {0}",
        ("pure", 1): "{0} is made of reductions alone",
        ("nonneg", 1): "{0} >= 0",
        ("below", 2): "{1} <= {0}",
        ("factor", 4): "{1} = {2} * {3} with {3} free of {0}",
        ("addend", 4): "{1} = {2} + {3} with {3} free of {0}",
        ("part", 4): "{1} = {2} + {3} with {3} free of {0}",
        ("expo", 5): "{2} = {0}({3}) * {4}",
        ("outer", 3): "{0} = {1} * {2}",
        ("union", 2): "{0} = {1}",
        ("pow2", 1): "{0} is a power of two",
        ("selects", 1): "{0} is an arg-best or a top-k",
        ("ordered", 1): "{0} is max or min",
        ("exponential", 1): "{0} is exp or exp2",
        ("multiplicative", 1): "{0} is multiplicative",
        ("integral", 1): "{0} rounds to integers",
        ("streams", 1): "{0} can be taken up where it stopped",
        ("mean_of", 4): "{1} is the mean of {3} over {0} with weights {2}",
        ("casts", 1): "{0} rounds to a narrower type",
        ("want_factor", 2): "{1} as a product over {0} is asked for",
        ("want_addend", 2): "{1} as a sum over {0} is asked for",
        ("want_part", 2): "a moving parameter that leaves {1} is asked for",
        ("source", 1): "{0} is a term of the source",
        ("hi", 1): "upper({0})",
        ("lo", 1): "lower({0})",
        ("set", 2): "{0} := {1}",
    }
    found = words.get((head, len(a)))
    return (found.format(*a), _ATOM if head in ("hi", "lo") else 0) if found else None
