"""A model of the rule language: every term as numbers on every prefix.

A value is an array [t, k, d] for prefixes t = 1..K of the streamed axis k and another axis d. A rule's
variables are drawn at random so that its conditions hold, its facts are made true by construction, and
its actions are then checked as numeric statements. Nothing here knows any particular rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redfuser_eq.ops import OPS
from redfuser_eq.rules import Rule
from redfuser_eq.terms import Sexp, parse

K, D = 5, 3
RELATIONS = {"factor", "addend", "part", "expo", "outer", "mean_of"}
CONDITIONS = {"dep", "indep", "static", "dynamic", "pure", "nonneg", "below"}
OPERATIONS = {
    "exponential": ["exp", "exp2"],
    "multiplicative": ["recip", "abs", "square"],
    "integral": ["floor", "ceil", "round"],
    "increasing": ["exp", "tanh", "floor", "erf"],
    "decreasing": ["neg"],
    "ordered": ["max", "min"],
    "streams": ["sum", "max", "min"],
    "selects": ["max"],
    "casts": ["round4"],
}


class Undrawn(Exception):
    """The draw does not satisfy a side condition; draw again."""


@dataclass(frozen=True)
class Value:
    """array [K + 1, K, D] (entry t: prefix of t elements; entry 0 unused); dep, dep_d: varies along k, d;
    dynamic: holds a reduction over k; pure: holds no leaf outside a reduction; pow2: a power of two."""

    array: np.ndarray
    dep: bool = False
    dep_d: bool = False
    dynamic: bool = False
    pure: bool = True
    pow2: bool = False


def _join(array: np.ndarray, *vs: Value) -> Value:
    return Value(array, any(v.dep for v in vs), any(v.dep_d for v in vs), any(v.dynamic for v in vs), all(v.pure for v in vs))


def _constant(x: float) -> Value:
    return Value(np.full((K + 1, K, D), float(x)), pow2=x > 0 and np.log2(x).is_integer())


def _fold(op: str, part: np.ndarray, axis: int) -> np.ndarray:
    return {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[op](part, axis=axis)


def reduce_k(op: str, v: Value, drop: int = 0) -> Value:
    """Reduction over the prefix, or (drop = 1) over all but its last element."""
    out = np.full_like(v.array, np.nan)
    for t in range(1, K + 1):
        if t - drop >= 1:
            out[t] = _fold(op, v.array[t, : t - drop], 0)
    return Value(out, False, v.dep_d, True, True)


def previous(v: Value) -> Value:
    out = np.full_like(v.array, np.nan)
    out[1:] = v.array[:-1]
    out[1] = np.nan
    return Value(out, v.dep, v.dep_d, v.dynamic, v.pure)


class Model:
    """One random draw of one rule."""

    def __init__(self, rule: Rule, rng: np.random.Generator) -> None:
        self.rng = rng
        arrow = " -> " if " -> " in rule.statement else " => "
        left, right = rule.statement.split(arrow)
        self.facts: list[Sexp] = [["=", "root_", parse(left)[0]]] if arrow == " -> " else list(parse(left))
        self.actions: list[Sexp] = [["union", "root_", parse(right)[0]]] if arrow == " -> " else list(parse(right))
        self.facts += parse(rule.when)
        self.env: dict[str, Value | str | float] = {"one": _constant(1), "zero": _constant(0), "two": _constant(2)}
        self.env |= {"-one": _constant(-1), "-inf": Value(np.full((K + 1, K, D), -np.inf)), "k": "k", "e": "d", "o": "d"}
        self.defined: dict[str, Sexp] = {}
        self.bounds: dict[str, float] = {}
        self._prepare()

    # ---- binding variables
    def _prepare(self) -> None:
        needs: dict[str, set[str]] = {}
        for f in self.facts:
            assert isinstance(f, list)
            head = f[0]
            if head == "=":
                name, term = (f[1], f[2]) if isinstance(f[1], str) else (f[2], f[1])
                if name not in self.env and term[0] not in ("lo", "hi"):
                    self.defined.setdefault(str(name), term)
            elif head in ("factor", "addend", "part") and isinstance(f[2], str):
                self.defined.setdefault(f[2], ["mul" if head == "factor" else "add", f[3], f[4]])
                needs.setdefault(str(f[4]), set()).add("indep")
            elif head == "expo" and isinstance(f[3], str):
                self.defined.setdefault(f[3], ["mul", ["U", f[1], f[4]], f[5]])
                needs.setdefault(str(f[4]), set()).update(("dep", "static"))
            elif head == "outer" and isinstance(f[1], str):
                self.defined.setdefault(f[1], ["mul", f[2], f[3]])
            elif head == "mean_of" and isinstance(f[2], str):
                self.defined.setdefault(f[2], ["div", ["sum", "k", ["mul", f[3], f[4]]], ["sum", "k", f[3]]])
                needs.setdefault(str(f[3]), set()).add("positive")
            elif head in ("at_least", "at_most"):
                op = OPS[str(self.rng.choice(["tanh", "sin", "erf"]))]
                self.env |= {str(f[1]): op.name, str(f[2]): float(op.low if head == "at_least" else op.high)}
            elif head in OPERATIONS and isinstance(f[1], str):
                self.env.setdefault(f[1], str(self.rng.choice(OPERATIONS[head])))
            elif head == "pow2":
                needs.setdefault(str(f[1]), set()).add("pow2")
            elif head in CONDITIONS and isinstance(f[-1], str):
                needs.setdefault(f[-1], set()).add(("d-" if f[1] == "e" else "") + head)
        for f in (*self.facts, *self.actions):
            self._roles(f, needs)
        self.needs = needs
        for f in self.facts:
            if f[0] == "=" and isinstance(f[2], list) and f[2][0] in ("lo", "hi"):
                end = np.nanmin if f[2][0] == "lo" else np.nanmax
                self.bounds[str(f[1])] = float(end(self.term(f[2][1]).array[1:]))
            else:
                self._visit(f)

    def _roles(self, e: Sexp, needs: dict[str, set[str]]) -> None:
        """What a variable's place says about it: the name of an operation, a coefficient, a fixed mask."""
        if isinstance(e, str):
            return
        head, args = str(e[0]), e[1:]
        if head in ("U", "expo") and args[0] not in self.env and not str(args[0]).startswith('"'):
            self.env[str(args[0])] = "exp" if head == "expo" else str(self.rng.choice(["tanh", "exp", "square"]))
        if head in ("R", "Prev", "Rebase", "Scan") and args[0] not in self.env and not str(args[0]).startswith('"'):
            self.env[str(args[0])] = str(self.rng.choice(["sum", "max", "min"]))
        if head == "B" and args[0] not in self.env:
            self.env[str(args[0])] = "maximum"
        if head == "Term" and isinstance(args[0], str):
            needs.setdefault(args[0], set()).add("indep")
        if head == "LSel" and isinstance(args[0], str):
            needs.setdefault(args[0], set()).add("static")
        for a in args:
            self._roles(a, needs)

    def _visit(self, e: Sexp) -> None:
        if isinstance(e, str):
            self.value(e)
        elif e[0] not in CONDITIONS and e[0] not in OPERATIONS and e[0] not in ("<", ">", "<=", ">=", "!=", "source"):
            for x in e[1:]:
                self._visit(x)

    def value(self, name: str) -> Value | str | float:
        if name not in self.env:
            if name.startswith('"'):
                return name.strip('"')
            if name in self.defined:
                self.env[name] = self.term(self.defined[name])
            elif name in ("x", "y") and self._literal(name):
                self.env[name] = float(self.rng.integers(1, 4))
            else:
                self.env[name] = self.draw(self.needs.get(name, set()))
        return self.env[name]

    def _literal(self, name: str) -> bool:
        return any(
            text in str(self.facts) for text in (f"['Num', '{name}']", f"['at_least', 'f', '{name}']", f"['at_most', 'f', '{name}']")
        )

    def draw(self, needs: set[str]) -> Value:
        """A random value with the wanted properties."""
        rng = self.rng
        dep = "dep" in needs or ("indep" not in needs and rng.random() < 0.5)
        dynamic = "dynamic" in needs or ("static" not in needs and rng.random() < 0.4)
        pure = "pure" in needs
        if pure and (dep or not dynamic):
            dep, dynamic = False, "static" not in needs
        dep_d = "d-indep" not in needs and rng.random() < 0.7
        shape = (1, K if dep else 1, D if dep_d else 1)
        leaf = rng.uniform(0.3, 2.0, shape)
        if not needs & {"nonneg", "positive"}:
            leaf = leaf * rng.choice([-1.0, 1.0], shape)
        array = np.broadcast_to(leaf, (K + 1, K, D)).copy()
        if dynamic:
            moving = rng.uniform(0.3, 1.5, (K + 1, 1, D if dep_d else 1))
            array = (
                np.broadcast_to(moving, (K + 1, K, D)).copy()
                if pure
                else array * moving
                if needs & {"nonneg", "positive"}
                else array + moving
            )
        if "below" in needs:
            array = -np.abs(array)
        if "pow2" in needs:
            array = np.exp2(np.round(array))
        return Value(array, dep, dep_d, dynamic, pure, "pow2" in needs)

    # ---- terms
    def term(self, e: Sexp) -> Value:
        if isinstance(e, str):
            v = self.value(e)
            assert isinstance(v, Value), e
            return v
        head, args = e[0], e[1:]
        assert isinstance(head, str)
        if head == "Num":
            return _constant(self.number(args[0]))
        if head in ("U", "B"):
            op = self.value(str(args[0]))
            return self.apply(str(op), *(self.term(a) for a in args[1:]))
        if head in ("R", "Prev", "Rebase"):
            op, axis, body = str(self.value(str(args[0]))), str(args[1]), self.term(args[2])
            return self.reduction(head, op, axis, body)
        if head in ("sum", "max", "min", "prod") and len(args) == 2:
            return self.reduction("R", head, str(args[0]), self.term(args[1]))
        if head == "count":
            return self.reduction("R", "sum", "k", _constant(1))
        if head == "Scan":
            return self.scan(str(self.value(str(args[0]))), self.term(args[2]), self.term(args[3]))
        if head == "Proj":
            return self.term(args[2]) if args[0] == '"value"' else self.position(args[2])
        if head == "Old":
            return previous(self.term(args[1]))
        if head == "Delta":
            v = self.term(args[1])
            return _join(v.array - previous(v).array, v)
        if head in ("where", "W"):
            p, a, b = (self.term(x) for x in args)
            return _join(np.where(p.array > 0, a.array, b.array), p, a, b)
        return self.linear(head, args)

    def position(self, e: Sexp) -> Value:
        """Index of the best element on each prefix."""
        body = self.term(e[3])
        find = np.argmin if self.value(str(e[1])) == "min" else np.argmax
        out = np.zeros_like(body.array)
        for t in range(1, K + 1):
            out[t] = find(body.array[t, :t], axis=0)
        return Value(out, False, body.dep_d, True, True)

    def linear(self, head: str, args: list[Sexp]) -> Value:
        """Shift and the linear forms: their value at a previous element, at the present prefix."""
        if head == "Shift":
            return self.term(args[1])
        if head == "Term":
            c, b = self.term(args[0]), self.term(args[1])
            if c.dep:
                raise Undrawn
            return _join(c.array * previous(b).array if b.dynamic else c.array * b.array, c, b)
        if head in ("LAdd", "LMul"):
            p, q = self.term(args[0]), self.term(args[1])
            return _join(p.array + q.array if head == "LAdd" else p.array * q.array, p, q)
        if head == "LSum":
            return self.reduction("R", "sum", "e", self.term(args[1]))
        if head == "LSel":
            p, q = self.term(args[0]), self.term(args[1])
            return _join(np.where(p.array > 0, q.array, 0), p, q)
        if head == "SumPrev":
            return reduce_k("sum", self.term(args[1]), drop=1)
        return self.apply(head, *(self.term(a) for a in args))

    def reduction(self, kind: str, op: str, axis: str, body: Value) -> Value:
        if axis == "e":
            summed = np.broadcast_to(_fold(op, body.array, 2)[..., None], body.array.shape)
            return Value(summed, body.dep, False, body.dynamic, False)
        if kind == "R":
            return reduce_k(op, body)
        if kind == "Rebase":
            return reduce_k(op, body, drop=1)
        return previous(reduce_k(op, body))

    def scan(self, op: str, body: Value, rebased: Value) -> Value:
        out = np.full_like(body.array, np.nan)
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
        for t in range(2, K + 1):
            out[t] = combine(rebased.array[t], body.array[t, t - 1])
        return _join(out, body, rebased)

    def apply(self, op: str, *args: Value) -> Value:
        if op == "round4":
            scale = np.exp2(np.floor(np.log2(np.abs(args[0].array))))
            return _join(np.round(args[0].array / scale * 8) / 8 * scale, *args)
        with np.errstate(all="ignore"):
            out = _join(np.asarray(OPS[op].numpy(*(a.array for a in args)), float), *args)
        power = op == "exp2" and np.all(args[0].array == np.round(args[0].array))
        power |= op in ("recip", "mul", "div") and all(a.pow2 for a in args)
        return Value(out.array, out.dep, out.dep_d, out.dynamic, out.pure, bool(power))

    def number(self, e: Sexp) -> float:
        if isinstance(e, str):
            try:
                return float(e)
            except ValueError:
                v = self.value(e)
                assert isinstance(v, float), e
                return v
        a = [self.number(x) for x in e[1:]]
        return {"+": a[0] + a[-1], "*": a[0] * a[-1]}[str(e[0])]
