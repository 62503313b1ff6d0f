"""The choice among schedules by the performance model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import numpy as np
import pytest
from test_gpu_model import CHIP

import redfuser_eq as rf
from redfuser_eq.cuda_choose import MARGIN, best, candidates, choose, reference
from redfuser_eq.cuda_floor import floor
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.gpu import GPUS

SIZES: dict[str, dict[str, int]] = {
    "logsumexp": {"r": 4096, "k": 32768},
    "softmax": {"r": 64, "k": 30000},
    "attention": {"b": 2, "h": 4, "i": 1024, "j": 1024, "e": 64, "d": 64},
    "decode": {"h": 8, "j": 4096, "e": 64, "d": 64},
    "routing": {"i": 4096, "h": 512, "j": 64, "t": 2},
}


@pytest.mark.parametrize("gpu", ["a100", "h200"])
@pytest.mark.parametrize("name", SIZES)
def test_no_candidate_is_predicted_to_be_faster_than_the_chosen_one(name: str, gpu: str) -> None:
    w, device = cascades.WORKLOADS[name](), GPUS[gpu]
    extents = w.extents | SIZES[name]
    found = candidates(w.cascade, extents, {}, device)
    chosen = best(found)
    assert len({c.kernel.key for c in found}) == len(found) > 1
    assert all(chosen.seconds <= (1 + MARGIN) * c.seconds for c in found)
    assert schedule(w.cascade, extents, {}, device).key == chosen.kernel.key
    assert found[0].kernel.key == schedule(w.cascade, extents, {}, device, {}).key  # its own come first, and win ties


HALF = ("attention", "attention_causal", "attention_window", "decode", "linear_logsumexp", "routing", "mla", "kmeans")


@pytest.mark.parametrize(("name", "half"), [*((n, False) for n in sorted(cascades.WORKLOADS)), *((n, True) for n in HALF)])
def test_candidates_that_are_not_made_would_not_be_chosen(name: str, half: bool) -> None:
    from test_cuda_mma import workload

    w, device = workload(name) if half else cascades.WORKLOADS[name](), GPUS["h200"]
    for extents in (w.extents, w.extents | SIZES.get(name, {})):
        found = candidates(w.cascade, extents, {}, device)
        assert choose(w.cascade, extents, {}, device).kernel == best(found).kernel
        sizes = reference(w.cascade, found[0].kernel, extents, device)
        assert floor(w.cascade, found[0].kernel, sizes, device) <= min(c.seconds for c in found)


def test_the_rest_is_not_made_where_nothing_can_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_cuda_mma import workload

    from redfuser_eq import cuda_schedule

    made: list[Any] = []
    known = cuda_schedule.schedule
    monkeypatch.setattr(cuda_schedule, "schedule", lambda *args: made.append(args) or known(*args))
    for name in ("attention", "decode", "routing"):
        w = workload(name)
        made.clear()
        choose(w.cascade, w.extents | SIZES[name], {}, GPUS["h200"])
        assert len(made) == 1, name


def test_tensor_cores_are_used_where_only_smaller_tiles_have_room() -> None:
    """The scheduler's own tiles do not fit, so that its form has no tensor cores; that one bounds nothing."""
    w = cascades.WORKLOADS["kmeans"]()
    c, extents, device = replace(w.cascade, numerics="fast"), {"i": 100000, "f": 128, "j": 1024}, GPUS["a100"]
    found = candidates(c, extents, {}, device)
    forms = [{p.place.form for p in x.kernel.phases if p.place is not None} for x in found]
    assert "mma" not in forms[0] and any("mma" in f for f in forms)
    chosen = choose(c, extents, {}, device)
    assert chosen.kernel == best(found).kernel and any(p.place is not None and p.place.form == "mma" for p in chosen.kernel.phases)
    assert floor(c, found[0].kernel, reference(c, found[0].kernel, extents, device), device) <= min(x.seconds for x in found)


def test_another_form_is_taken_where_it_is_predicted_to_be_faster() -> None:
    """On a chip whose tensor cores do next to nothing."""
    from test_cuda_mma import workload

    w = workload("attention")
    extents = w.extents | SIZES["attention"]
    slow = replace(GPUS["h200"], tensor={"bf16": 1e11})
    forms = {g.name: {p.place.form for p in schedule(w.cascade, extents, {}, g).phases if p.place} for g in (slow,)}
    assert forms == {"h200": {"tile"}} and best(candidates(w.cascade, extents, {}, GPUS["h200"])).choice == {}


@pytest.mark.parametrize("name", ["attention", "logsumexp"])
def test_the_batch_has_no_say(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    extents = w.extents | SIZES[name]
    batch = "b" if name == "attention" else "r"
    keys, sizes = set(), []
    for n in (1, 3, 1000):
        k = schedule(w.cascade, extents | {batch: n}, {}, CHIP)
        keys.add(k.key)
        sizes.append(reference(w.cascade, k, extents | {batch: n}, CHIP))
    assert len(keys) == 1 and sizes[0] == sizes[1] == sizes[2]


def test_explain_lists_what_was_considered() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = q @ np.swapaxes(k, -1, -2)
        p = np.exp(s - s.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True)) @ v

    x = np.zeros((2, 4, 512, 64), np.float32)
    text = str(rf.optimize(attention, target="cuda").explain(x, x, x))
    assert "considered" in text and "its own" in text and "form rows" in text
