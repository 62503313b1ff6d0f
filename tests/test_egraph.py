"""What the e-graph finds equal, and what it must not: "this becomes that", users' own laws, budgets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq.cascade import Cascade
from redfuser_eq.device import device
from redfuser_eq.encode import encode
from redfuser_eq.expr import Acc, Expr, Map, Prev, nodes
from redfuser_eq.plan import Plan, plan
from redfuser_eq.rules import RuleSet, default, derive, fast, law, strict
from redfuser_eq.saturate import Budget, saturate
from redfuser_eq.trace import trace

X = np.broadcast_to(np.float32(0), (16, 640))
W = np.broadcast_to(np.float32(0), (640, 24))
V = np.broadcast_to(np.float32(0), (640,))
S = np.broadcast_to(np.float32(0), (16, 1))
rng = np.random.default_rng(22)


def planned(f: Any, *arrays: Any, rules: RuleSet = default, budget: Budget | None = None) -> Plan:
    return plan(trace(f, arrays).program, rules, device(None), verify="raise", budget=budget)


def equal(pair: Any, *arrays: Any, rules: RuleSet = default) -> bool:
    """Whether two results of a function end up in one class."""
    program = trace(lambda *xs: np.logical_xor(*pair(*xs)), arrays).program
    encoded = encode(program)
    result = saturate(encoded, rules)
    assert result.saturated
    (root,) = program.outputs
    first, second = (result.rows.names[encoded.names[_value(e)]] for e in root.expr.args)
    return first == second


def _value(e: Expr) -> Expr:
    """The number that a truth value is made of."""
    return e.args[0] if isinstance(e, Map) and e.op == "ne" else e


def peak(x: Any) -> Any:
    return np.max(x, axis=-1, keepdims=True)


def total(x: Any) -> Any:
    return np.sum(x, axis=-1, keepdims=True)


def softmax(x: Any) -> Any:
    e = np.exp(x - peak(x))
    return e / total(e)


def logsumexp(x: Any) -> Any:
    return np.log(total(np.exp(x - peak(x)))) + peak(x)


def variance(x: Any) -> Any:
    return np.mean((x - np.mean(x, axis=-1, keepdims=True)) ** 2, axis=-1)


# ---- this becomes that

Y = np.broadcast_to(np.float32(1), (16, 640))


def least(x: Any) -> Any:
    return np.min(x, axis=-1, keepdims=True)


# The laws write what leaves a reduction on its left.
BECOMES = {
    "a factor leaves a sum": (lambda x, s: (total(x * np.exp(s)), np.exp(s) * total(x)), (X, S)),
    "a divisor leaves a sum": (lambda x, s: (total(x / s), 1 / s * total(x)), (X, S)),
    "a divisor leaves a product": (lambda x, w: ((x / peak(np.exp(x))) @ w, 1 / peak(np.exp(x)) * (x @ w)), (X, W)),
    "an addend leaves a maximum": (lambda x: (peak(np.cos(x) + peak(x)), peak(x) + peak(np.cos(x))), (X,)),
    "an addend leaves a minimum": (lambda x: (least(np.cos(x) - peak(x)), -peak(x) + least(np.cos(x))), (X,)),
    "a factor of no negative sign leaves a maximum": (
        lambda x: (peak(np.cos(x) * np.abs(peak(x))), np.abs(peak(x)) * peak(np.cos(x))),
        (X,),
    ),
    "exp through a maximum": (lambda x: (peak(np.exp(x - total(x))), np.exp(peak(x - total(x)))), (X,)),
    "tanh through a minimum": (lambda x: (least(np.tanh(x - total(x))), np.tanh(least(x - total(x)))), (X,)),
    "the naive sum of exponentials is the safe one": (
        lambda x: (np.log(total(np.exp(x))), peak(x) + np.log(total(np.exp(x - peak(x))))),
        (X,),
    ),
    "a mask is a factor": (
        lambda x, y, m: (total(np.where(m > 0, y * np.exp(peak(x)), 0)), np.exp(peak(x)) * total(np.where(m > 0, y, 0))),
        (X, Y, V),
    ),
    "a reduction less itself is 0": (lambda x: (peak(x) - peak(x), np.zeros_like(peak(x))), (X,)),
    "a reduction by itself is 1": (lambda x: (peak(x) / peak(x), np.ones_like(peak(x))), (X,)),
}

NEVER = {
    "x - x is 0": (lambda x: (x - x, np.zeros_like(x)), (X,)),
    "the sum of x - x is 0": (lambda x: (total(x - x), total(np.zeros_like(x))), (X,)),
    "x / x is 1": (lambda x: (x / x, np.ones_like(x)), (X,)),
    "x * 0 is 0": (lambda x: (x * 0, np.zeros_like(x)), (X,)),
    "a factor of unknown sign leaves a maximum": (lambda x: (peak(np.cos(x) * peak(x)), peak(x) * peak(np.cos(x))), (X,)),
    "a factor of unknown sign leaves a minimum": (lambda x: (least(np.cos(x) * peak(x)), peak(x) * least(np.cos(x))), (X,)),
    "a negative factor leaves a maximum": (lambda x: (peak(np.cos(x) * -np.exp(peak(x))), -np.exp(peak(x)) * peak(np.cos(x))), (X,)),
    "what varies leaves a sum": (lambda x, y: (total(x * y), y * total(x)), (X, Y)),
    "cos through a maximum": (lambda x: (peak(np.cos(x - total(x))), np.cos(peak(x - total(x)))), (X,)),
    "neg through a maximum": (lambda x: (peak(-(x - total(x))), -peak(x - total(x))), (X,)),
    "a decreasing function through a maximum": (lambda x: (peak(1 / np.sqrt(x - total(x))), 1 / np.sqrt(peak(x - total(x)))), (X,)),
    "a sum of products is a product of sums": (lambda x, y: (total(x * y), total(x) * total(y)), (X, Y)),
    "exp(a) + exp(b) is exp(a + b)": (lambda x, y: (np.exp(x) + np.exp(y), np.exp(x + y)), (X, Y)),
    "rounding commutes with a scale": (lambda x: (np.round(x / peak(x)) * peak(x), np.round(x)), (X,)),
}


@pytest.mark.parametrize("name", BECOMES)
def test_becomes(name: str) -> None:
    pair, arrays = BECOMES[name]
    assert equal(pair, *arrays)
    assert not equal(pair, *arrays, rules=RuleSet("none", []))


@pytest.mark.parametrize("name", NEVER)
@pytest.mark.parametrize("rules", [default, fast], ids=lambda r: r.name)
def test_never_becomes(name: str, rules: RuleSet) -> None:
    pair, arrays = NEVER[name]
    assert not equal(pair, *arrays, rules=rules)


def test_deviations_sum_to_zero_only_where_accuracy_may_be_lost() -> None:
    def pair(x: Any) -> Any:
        mean = total(x) / x.shape[-1]
        return total(x - mean), np.zeros_like(mean)

    assert not equal(pair, X)
    assert equal(pair, X, rules=fast)


def test_squares_expand_only_where_accuracy_may_be_lost() -> None:
    x = np.asarray(rng.standard_normal((3, 640)) + 1000, np.float32)
    want = np.var(x.astype(np.float64), axis=-1)
    got = rf.optimize(variance, target="numpy", verify="raise")(x)
    np.testing.assert_allclose(got, want, rtol=1e-3)


def test_a_scale_moves_out_of_a_cast_only_as_a_power_of_two() -> None:
    def quantised(scale: Any) -> Any:
        def f(x: Any, w: Any) -> Any:
            s = scale(peak(np.abs(x)))
            return ((x / s).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) @ w) * s

        return f

    def main(p: Plan) -> tuple[int, int]:
        return (p.report.passes_before, p.report.passes_after)

    plain, power = quantised(lambda m: m / 448.0), quantised(lambda m: np.exp2(np.ceil(np.log2(m / 448.0))))
    assert main(planned(plain, X, W)) == main(planned(plain, X, W, rules=strict)) == (2, 2)
    assert main(planned(power, X, W)) == (2, 1)
    assert main(planned(power, X, W, rules=default - {"rounding"})) == (2, 2)
    assert main(planned(plain, X, W, rules=fast)) == (2, 1)


# ---- what is chosen


def expressions(c: Cascade) -> list[Expr]:
    return [e for a in c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in c.outputs]


def moves(e: Expr) -> bool:
    return any(isinstance(n, (Acc, Prev)) for n in nodes(e))


CHAINS = {
    "logsumexp": (logsumexp, (X,)),
    "softmax @ w": (lambda x, w: softmax(x) @ w, (X, W)),
    "entropy": (lambda x: -total(softmax(x) * np.log(softmax(x))), (X,)),
    "weighted variance": (lambda x, v: total(softmax(x) * (v - total(softmax(x) * v)) ** 2), (X, V)),
    "variance": (variance, (X,)),
}


@pytest.mark.parametrize("name", [n for n in CHAINS if n != "variance"])
def test_no_exponential_of_an_unbounded_argument(name: str) -> None:
    """exp(-m) * sum(exp(x)) is equal, cheaper, and overflows."""
    f, arrays = CHAINS[name]
    c = planned(f, *arrays).cascade
    found = [e for e in nodes(*expressions(c)) if isinstance(e, Map) and e.op in ("exp", "exp2")]
    assert found
    for e in found:  # a difference of something and a maximum of it
        (argument,) = e.args
        assert isinstance(argument, Map) and argument.op == "sub"
        assert isinstance(argument.args[1], Acc) and c.accumulator(argument.args[1].name).op == "max"
    x = (rng.standard_normal((2, 640)) * 1e4).astype(np.float32)
    others = [np.asarray(rng.standard_normal(a.shape), np.float32) for a in arrays[1:]]
    if name != "entropy":  # there 0 * log(0) is what was written
        assert np.isfinite(rf.optimize(f, target="numpy", verify="raise")(x, *others)).all()


@pytest.mark.parametrize("name", CHAINS)
def test_without_prefix_nothing_streams_and_all_is_right(name: str) -> None:
    f, arrays = CHAINS[name]
    p = planned(f, *arrays, rules=default - {"prefix"})
    assert all(a.rebase is None for a in p.cascade.accumulators())
    assert p.report.passes_after > planned(f, *arrays).report.passes_after == 1
    assert p.report.saturated
    assert str(p.report.reason).startswith(("no law of the rule set moves", "one more pass is needed"))
    given = [np.asarray(rng.standard_normal(a.shape), np.float32) for a in arrays]
    want = f(*(a.astype(np.float64) for a in given))
    got = rf.optimize(f, rules=default - {"prefix"}, target="numpy", verify="raise")(*given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# ---- a user's own laws

ROOT = law("root-of-square", "(sqrt (square a))", "(abs a)", why="the root of a square has no sign")


def test_a_users_law_joins_and_fires() -> None:
    def pair(x: Any) -> Any:
        return np.sqrt(np.square(x)), np.abs(x)

    mine = default + RuleSet("mine", [ROOT])
    assert mine.name == "default+mine"
    assert not equal(pair, X) and equal(pair, X, rules=mine)
    r = rf.optimize(lambda x: peak(np.sqrt(np.square(x))), rules=["default", RuleSet("mine", [ROOT])]).report(X)
    assert r.rules_fired["root-of-square"] == 1 and r.rule_set == "default+mine"


def test_a_users_law_makes_a_chain_fuse() -> None:
    """sigma(x * m) with a maximum inside an operation no law knows: a user's law says what it distributes over."""

    def f(x: Any) -> Any:
        return np.sum(np.floor(x) * np.cos(peak(x)) + np.floor(x), axis=-1)

    assert planned(f, X).report.passes_after == 1

    def g(x: Any) -> Any:
        return np.sum(np.log2(np.exp2(x) * np.exp2(peak(x))), axis=-1)

    logs = law("log2-of-product", "(log2 (mul (exp2 a) (exp2 b)))", "(add a b)", why="over the reals", phase="tidy")
    assert planned(g, X).report.passes_after == 2
    assert planned(g, X, rules=default + RuleSet("logs", [logs])).report.passes_after == 1


def test_facts_of_a_user() -> None:
    """A Datalog rule may prove a bound that a law asks for."""

    def pair(x: Any) -> Any:
        scale = np.floor(np.exp(peak(x)))
        return peak(np.cos(x) * scale), scale * peak(np.cos(x))

    floors = derive("floor-nonneg", "(= c (floor a)) (= v (lo a)) (>= v 0.0)", "(set (lo c) 0.0)", why="floor(a) >= 0 for a >= 0")
    assert equal(pair, X, rules=default + RuleSet("mine", [floors]))
    assert not equal(pair, X)


UNSOUND = default + RuleSet("wrong", [law("no-roots", "(log a)", "(mul two a)", why="it is not", phase="tidy", subsume=True)])


def test_an_unsound_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rng.standard_normal((3, 40)).astype(np.float32)
    want = logsumexp(x.astype(np.float64))
    with pytest.raises(rf.UnsoundRewrite, match=r"rule set 'default\+wrong' rewrote the program unsoundly"):
        rf.optimize(logsumexp, rules=UNSOUND, target="numpy", verify="raise")(x)
    monkeypatch.delenv("REDFUSER_VERIFY", raising=False)
    fused = rf.optimize(logsumexp, rules=UNSOUND, target="numpy", verify=True)
    with pytest.warns(rf.UnsoundRewriteWarning, match="the unfused program is used instead"):
        got = fused(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert not fused.report(x).fused and "unsoundly" in str(fused.report(x).reason)
    monkeypatch.setenv("REDFUSER_VERIFY", "raise")
    with pytest.raises(rf.UnsoundRewrite):
        rf.optimize(logsumexp, rules=UNSOUND, target="numpy")(x)


AC = RuleSet(
    "ac",
    [
        law("add-commutes", "(add a b)", "(add b a)", why="commutative"),
        law("add-associates", "(add (add a b) c)", "(add a (add b c))", why="associative"),
        law("mul-commutes", "(mul a b)", "(mul b a)", why="commutative"),
        law("mul-associates", "(mul (mul a b) c)", "(mul a (mul b c))", why="associative"),
    ],
)


@pytest.mark.parametrize(("budget", "why"), [(Budget(rows=3000), "row budget of 3000"), (Budget(seconds=0.05), "time budget of 0.05 s")])
def test_runaway_laws_stop_at_the_budget(budget: Budget, why: str) -> None:
    def f(x: Any, v: Any) -> Any:
        y = x * v * (x + v) * (x + 2) * (v + 3) * np.exp(v)
        return np.sum(y + v + x * 2 + x * v + np.tanh(x) + np.exp(x - peak(x)), axis=-1)

    x, v = rng.standard_normal((3, 40)).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    fused = rf.optimize(f, rules=default + AC, budget=budget, target="numpy", verify="raise")
    np.testing.assert_allclose(fused(x, v), f(x.astype(np.float64), v.astype(np.float64)), rtol=1e-4)
    r = fused.report(x, v)
    assert not r.saturated and r.stopped == why
    assert r.seconds["saturate"] < 20


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (law("broken", "(nonsense a)", "a", why="none"), r"rule 'broken' \(\(nonsense a\) -> a\) is not valid egglog"),
        (law("unbound", "(exp a)", "(exp b)", why="none"), "rule 'unbound'"),
        (derive("no-table", "(= c (exp a))", "(set (height c) 1.0)", why="none"), "rule 'no-table'"),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_a_rule_that_is_not_egglog_is_named(rule: Any, message: str) -> None:
    fused = rf.optimize(logsumexp, rules=default + RuleSet("mine", [rule]), target="numpy")
    with pytest.raises(ValueError, match=message):
        fused.report(X)
    with pytest.raises(ValueError, match=message):  # and again: nothing half-made is kept
        fused.report(X)
    assert planned(logsumexp, X).report.passes_after == 1


def test_every_program_starts_from_the_same_e_graph() -> None:
    first = planned(logsumexp, X).report.rows
    planned(variance, X)
    assert planned(logsumexp, X).report.rows == first
