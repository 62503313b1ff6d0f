"""The egglog sorts and functions that the laws are stated over, and the shorthand the rules are written in.

Terms (see `docs/laws.md` for their meaning on prefixes)
    E = (Num x) | (Leaf id axes) | (Add a b) | (Mul a b) | (U op a) | (B op a b) | (W c a b)
      | (R op k body) | (Proj field axes state)
      | (Prev op k body) | (Old k e) | (Delta k e) | (Rebase op k body) | (Scan op k body rebased) | (SumPrev k l)
    L = (Term c b) | (LAdd l l) | (LMul l l) | (Shift k e) | (LSum k l) | (LSel p l)
        coefficient x basis at old parameters

An axis is one bit of an i64, so a set of axes is a mask; at most 63 axes. Analyses: `free` (axes a value
varies over), `over` (axes it holds a reduction over), `bare` (1 when it holds a leaf outside every
reduction), `lo`, `hi` (bounds; an exponent of unknown bound has `hi` = inf), `pow2` (a power of two).
Relations by which laws ask for what they need are declared here too, so that any subset of rules loads.

Shorthand, expanded by `expand`: an elementwise operation is written by its name, `(exp a)`, `(sub a b)`,
`(where c a b)`; a reduction as `(sum k b)`; `zero`, `one`, `-inf`; `(count k)` is the number of elements.
Conditions: `(dep k e)`, `(indep k e)`, `(static k e)`, `(dynamic k e)`, `(pure e)`, `(nonneg e)`, `(below x e)`.
"""

from __future__ import annotations

import itertools
import math
import re
from functools import lru_cache

from .ops import MONOIDS, OPS

SCHEMA = """
(sort E)
(sort L)
(constructor Num (f64) E)
(constructor Leaf (i64 i64) E)
(constructor Add (E E) E)
(constructor Mul (E E) E)
(constructor U (String E) E)
(constructor B (String E E) E)
(constructor W (E E E) E)
(constructor R (String i64 E) E)
(constructor Proj (String i64 E) E)
(constructor Prev (String i64 E) E)
(constructor Old (i64 E) E)
(constructor Delta (i64 E) E)
(constructor Rebase (String i64 E) E)
(constructor Scan (String i64 E E) E)
(constructor SumPrev (i64 L) E)
(constructor Term (E E) L)
(constructor LAdd (L L) L)
(constructor LMul (L L) L)
(constructor Shift (i64 E) L)
(constructor LSum (i64 L) L)
(constructor LSel (E L) L)
(function free (E) i64 :merge (& old new))
(function over (E) i64 :merge (& old new))
(function bare (E) i64 :merge (& old new))
(function lo (E) f64 :merge (max old new))
(function hi (E) f64 :merge (min old new))
(relation pow2 (E))
(relation ordered (String))
(relation selects (String))
(relation integral (String))
(relation casts (String))
(relation multiplicative (String))
(relation exponential (String))
(relation increasing (String))
(relation decreasing (String))
(relation streams (String))
(relation at_least (String f64))
(relation at_most (String f64))
(relation mean_of (i64 E E E))
(relation want_factor (i64 E))
(relation want_addend (i64 E))
(relation factor (i64 E E E))
(relation addend (i64 E E E))
(relation want_part (i64 E))
(relation part (i64 E E E))
(relation expo (String i64 E E E))
(relation outer (E E E))
(relation source (E))
(ruleset structure)
(ruleset analyse)
(ruleset tidy)
(ruleset expand)
(multiplicative "recip")
(multiplicative "abs")
(multiplicative "square")
(exponential "exp")
(exponential "exp2")
(integral "floor")
(integral "ceil")
(integral "round")
(ordered "max")
(ordered "min")
(streams "sum")
(streams "max")
(streams "min")
"""

# Structure of terms: what every rule's side conditions stand on, so no rule set can leave it out.
ANALYSIS = """
(rule ((U f a) (exponential f)) ((set (hi a) inf)))
(rule ((= c (Num x))) ((set (free c) 0) (set (over c) 0) (set (bare c) 0) (set (lo c) x) (set (hi c) x)))
(rule ((= c (Leaf n s))) ((set (free c) s) (set (over c) 0) (set (bare c) 1)))
(rule ((= c (Add a b)) (= s (free a)) (= t (free b)) (= u (over a)) (= v (over b)) (= p (bare a)) (= q (bare b)))
      ((set (free c) (| s t)) (set (over c) (| u v)) (set (bare c) (| p q))))
(rule ((= c (Mul a b)) (= s (free a)) (= t (free b)) (= u (over a)) (= v (over b)) (= p (bare a)) (= q (bare b)))
      ((set (free c) (| s t)) (set (over c) (| u v)) (set (bare c) (| p q))))
(rule ((= c (B f a b)) (= s (free a)) (= t (free b)) (= u (over a)) (= v (over b)) (= p (bare a)) (= q (bare b)))
      ((set (free c) (| s t)) (set (over c) (| u v)) (set (bare c) (| p q))))
(rule ((= c (W w a b)) (= r (free w)) (= s (free a)) (= t (free b))) ((set (free c) (| r (| s t)))))
(rule ((= c (W w a b)) (= r (over w)) (= s (over a)) (= t (over b))) ((set (over c) (| r (| s t)))))
(rule ((= c (W w a b)) (= r (bare w)) (= s (bare a)) (= t (bare b))) ((set (bare c) (| r (| s t)))))
(rule ((= c (U f a)) (= s (free a)) (= u (over a)) (= p (bare a))) ((set (free c) s) (set (over c) u) (set (bare c) p)))
(rule ((= c (Old k a)) (= s (free a)) (= u (over a)) (= p (bare a))) ((set (free c) s) (set (over c) u) (set (bare c) p)))
(rule ((= c (Delta k a)) (= s (free a)) (= u (over a)) (= p (bare a))) ((set (free c) s) (set (over c) u) (set (bare c) p)))
(rule ((= c (R f k b)) (= s (free b)) (= u (over b))) ((set (free c) (- s (& s k))) (set (over c) (| u k)) (set (bare c) 0)))
(rule ((= c (Prev f k b)) (= s (free b)) (= u (over b))) ((set (free c) (- s (& s k))) (set (over c) (| u k)) (set (bare c) 0)))
(rule ((= c (Rebase f k b)) (= s (free b)) (= u (over b))) ((set (free c) (- s (& s k))) (set (over c) (| u k)) (set (bare c) 0)))
(rule ((= c (Proj n o a)) (= s (free a)) (= u (over a))) ((set (free c) (| s o)) (set (over c) u) (set (bare c) 0)))
"""

FACTS = "\n".join(
    [f'(increasing "{o.name}")' for o in OPS.values() if o.arity == 1 and o.monotone > 0]
    + [f'(decreasing "{o.name}")' for o in OPS.values() if o.arity == 1 and o.monotone < 0 and o.kind == "same" and o.name != "neg"]
    + [f'(at_least "{o.name}" {float(o.low)})' for o in OPS.values() if o.arity == 1 and math.isfinite(o.low)]
    + [f'(at_most "{o.name}" {float(o.high)})' for o in OPS.values() if o.arity == 1 and math.isfinite(o.high)]
)

_SPECIAL = {"add": "Add", "mul": "Mul"}
_WORDS = {"zero": "(Num 0.0)", "one": "(Num 1.0)", "two": "(Num 2.0)", "-one": "(Num -1.0)", "-inf": "(Num -inf)"}
_fresh = itertools.count()

Sexp = str | list["Sexp"]


def parse(text: str) -> list[Sexp]:
    """S-expressions of a text."""
    stack: list[list[Sexp]] = [[]]
    for token in re.findall(r'"[^"]*"|[()]|[^\s()"]+', text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise ValueError(f"unbalanced parentheses in {text!r}")
    return stack[0]


def unparse(e: Sexp) -> str:
    return e if isinstance(e, str) else "(" + " ".join(unparse(x) for x in e) + ")"


def _condition(head: str, args: list[str]) -> str | None:
    v = f"v{next(_fresh)}"
    match head, args:
        case ("dep", [k, e]):
            return f"(= {v} (free {e})) (!= 0 (& {v} {k}))"
        case ("indep", [k, e]):
            return f"(= {v} (free {e})) (= 0 (& {v} {k}))"
        case ("static", [k, e]):
            return f"(= {v} (over {e})) (= 0 (& {v} {k}))"
        case ("dynamic", [k, e]):
            return f"(= {v} (over {e})) (!= 0 (& {v} {k}))"
        case ("pure", [e]):
            return f"(= 0 (bare {e}))"
        case ("nonneg", [e]):
            return f"(= {v} (lo {e})) (>= {v} 0.0)"
        case ("below", [x, e]):
            return f"(= {v} (hi {e})) (<= {v} {x})"
    return None


def _expand(e: Sexp) -> str:
    if isinstance(e, str):
        return _WORDS.get(e, e)
    if not e or not isinstance(e[0], str):
        return "(" + " ".join(_expand(x) for x in e) + ")"
    head, args = e[0], [_expand(x) for x in e[1:]]
    if head.startswith("!") and head != "!=":  # a primitive of egglog whose name an operation has too
        return f"({head[1:]} {' '.join(args)})"
    if head == "sub":
        return f'(Add {args[0]} (U "neg" {args[1]}))'
    if head == "div":
        return f'(Mul {args[0]} (U "recip" {args[1]}))'
    if head == "count":
        return f'(R "sum" {args[0]} (Num 1.0))'
    if head == "where" and len(args) == 3:
        return f"(W {' '.join(args)})"
    if head in _SPECIAL:
        return f"({_SPECIAL[head]} {' '.join(args)})"
    if head in MONOIDS and len(args) == 2:
        return f'(R "{head}" {" ".join(args)})'
    if head in OPS and len(args) == OPS[head].arity:
        return f'({"UB"[len(args) - 1]} "{head}" {" ".join(args)})'
    return _condition(head, args) or f"({head} {' '.join(args)})"


@lru_cache(maxsize=4096)
def expand(text: str) -> str:
    """Shorthand to egglog text; several expressions give several."""
    return " ".join(_expand(x) for x in parse(text))


def axis_bit(n: int) -> int:
    """The mask of the n-th axis."""
    if not 0 <= n < 63:
        raise ValueError(f"a program can hold at most 63 axes; this is number {n + 1}")
    return 1 << n
