"""Each law holds on random data, on every prefix; and laws do not fire where they must not."""

from __future__ import annotations

import numpy as np
import pytest
from rule_model import CONDITIONS, K, Model, Undrawn, Value, reduce_k

from redfuser_eq import rules
from redfuser_eq.rules import RuleSet, derive, law
from redfuser_eq.terms import Sexp, expand

ALL = rules.fast.rules
EXACT = [r for r in ALL if r.theme != "rescaling"]
ASKS = {"want_factor", "want_addend", "want_part"}


def holds(model: Model, fact: Sexp) -> bool:
    """A side condition, on the drawn values."""
    assert isinstance(fact, list)
    head = fact[0]
    if head not in CONDITIONS:
        return True
    v = model.term(fact[-1])
    along_d = fact[1] == "e"
    return {
        "dep": (v.dep_d if along_d else v.dep),
        "indep": not (v.dep_d if along_d else v.dep),
        "static": not v.dynamic,
        "dynamic": v.dynamic,
        "pure": v.pure and not v.dep,
        "nonneg": bool(np.nanmin(v.array[2:]) >= 0),
        "below": bool(np.nanmax(v.array[2:]) <= 0),
    }[str(head)]


def agree(a: Value, b: Value, elements: int | None = None) -> None:
    """Equal on every prefix of two or more elements, at the elements of the prefix (or fewer)."""
    for t in range(2, K + 1):
        n = elements if elements is not None else t
        left, right = a.array[t, : max(1, min(n, t))], b.array[t, : max(1, min(n, t))]
        ok = np.isfinite(left) & np.isfinite(right)
        if not ok.any():
            raise Undrawn
        np.testing.assert_allclose(left[ok], right[ok], rtol=1e-7, atol=1e-9)


def check_action(model: Model, action: Sexp) -> None:
    assert isinstance(action, list)
    head = action[0]
    if head == "union":
        linear = str(model.facts[0]).find("Shift") >= 0 or str(model.facts[0]).find("LSel") >= 0
        left, right = model.term(action[1]), model.term(action[2])
        # a Shift is about the previous elements, so the newest one is left out
        for t in range(2, K + 1):
            n = t - 1 if linear else t
            now, then = left.array[t, :n], right.array[t, :n]
            ok = np.isfinite(now) & np.isfinite(then)
            np.testing.assert_allclose(now[ok], then[ok], rtol=1e-7, atol=1e-9)
        if not (np.isfinite(left.array[K]) & np.isfinite(right.array[K])).any():
            raise Undrawn
    elif head == "set":
        kind, target = action[1][0], model.term(action[1][1])
        limit = _number(model, action[2])
        values = np.concatenate([target.array[t, :t].ravel() for t in range(2, K + 1)])
        values = values[np.isfinite(values)]
        if values.size:
            assert (values <= limit + 1e-9).all() if kind == "hi" else (values >= limit - 1e-9).all()
    elif head in ("factor", "addend", "part"):
        body, g, h = (model.term(x) for x in action[2:])
        assert not h.dep
        agree(body, Value(g.array * h.array if head == "factor" else g.array + h.array))
    elif head == "expo":
        body, x, r = (model.term(a) for a in action[3:])
        agree(body, Value(model.apply(str(model.value(str(action[1]))), x).array * r.array))
    elif head == "outer":
        c, f, r = (model.term(a) for a in action[1:])
        agree(c, Value(f.array * r.array))
    elif head == "mean_of":
        m, w, x = (model.term(a) for a in action[2:])
        product = Value(w.array * x.array, w.dep or x.dep)
        agree(m, Value(reduce_k("sum", product).array / reduce_k("sum", w).array))
    elif head == "pow2":
        v = model.term(action[1]).array
        v = v[np.isfinite(v)]
        assert (v > 0).all()
        np.testing.assert_allclose(np.log2(v), np.round(np.log2(v)), atol=1e-12)
    elif head not in ASKS and head != "sum":
        raise AssertionError(f"no meaning for {action}")


def _number(model: Model, e: Sexp) -> float:
    if isinstance(e, str) and e in model.bounds:
        return model.bounds[e]
    if isinstance(e, str):
        return model.number(e)
    a = [_number(model, x) for x in e[1:]]
    return {"+": sum(a), "*": float(np.prod(a)), "!max": max(a), "!min": min(a)}[str(e[0])]


@pytest.mark.parametrize("rule", EXACT, ids=lambda r: r.name)
def test_law_holds_on_every_prefix(rule: rules.Rule) -> None:
    checked = 0
    for seed in range(400):
        try:
            model = Model(rule, np.random.default_rng(seed))
            if not all(holds(model, f) for f in model.facts):
                continue
            for action in model.actions:
                check_action(model, action)
        except Undrawn:
            continue
        checked += 1
        if checked == 8:
            return
    assert checked, f"no draw satisfied the conditions of {rule.name}"


@pytest.mark.parametrize(
    "wrong",
    [
        law("wrong-hoist", "(sum k (mul g h))", "(mul h (sum k g))", when="(dep k h)", why="h varies along k"),
        law("wrong-max", "(max k (mul g h))", "(mul h (max k g))", when="(indep k h)", why="h may be negative"),
        law("wrong-old", "(Old k a)", "a", why="a moves"),
        law("wrong-rebase", '(Rebase "sum" k b)', '(Prev "sum" k b)', why="b moves"),
        law("wrong-log", "(log (add a b))", "(mul (log a) (log b))", when="(nonneg a) (nonneg b)", why="no"),
        derive("wrong-bound", "(= c (sub (max k a) a))", "(set (hi c) 0.0)", why="the sign is wrong"),
    ],
    ids=lambda r: r.name,
)
def test_the_model_refutes_wrong_laws(wrong: rules.Rule) -> None:
    with pytest.raises(AssertionError):
        for seed in range(60):
            model = Model(wrong, np.random.default_rng(seed))
            if all(holds(model, f) for f in model.facts):
                for action in model.actions:
                    check_action(model, action)


def test_sets_join_and_thin() -> None:
    thin = rules.default - {"prefix"}
    assert "prefix" not in thin.themes() and len(thin) < len(rules.default)
    assert (thin + rules.default).themes() == rules.default.themes()
    one = rules.default - {"sum-hoist"}
    assert len(one) == len(rules.default) - 1 and "sum-hoist" not in {r.name for r in one}
    with pytest.raises(ValueError, match="no theme or rule"):
        _ = rules.default - {"no-such-rule"}
    with pytest.raises(ValueError, match="unique"):
        RuleSet("twice", (rules.default.rules[0], rules.default.rules[0]))


def test_names_resolve() -> None:
    assert rules.resolve("default", "fast") is rules.fast
    assert rules.resolve("strict", "default") is rules.strict
    assert rules.resolve(["strict", rules.default], "default").themes() == rules.default.themes()
    with pytest.raises(ValueError, match="not a rule set"):
        rules.resolve("nonsense", "default")
    with pytest.raises(ValueError, match="numerics"):
        rules.resolve("default", "sloppy")


def test_every_rule_says_why() -> None:
    assert all(r.why and r.statement for r in ALL)


def test_shorthand_expands() -> None:
    assert expand("(sub a (exp b))") == '(Add a (U "neg" (U "exp" b)))'
    assert expand("(max k zero)") == '(R "max" k (Num 0.0))'
    assert expand("(!max u v)") == "(max u v)"
    with pytest.raises(ValueError, match="unbalanced"):
        expand("(add a b")
