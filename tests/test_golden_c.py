"""The printed C of ten workloads, as files: a change of the compiler shows as a change of text.

`pytest --update-golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import cascades
import pytest

from redfuser_eq.codegen.c import emit
from redfuser_eq.runtime.device import Device
from redfuser_eq.schedule import schedule

GOLDEN = Path(__file__).parent / "golden"
AVX2 = Device("avx2", 32, 2, 32 << 10, 512 << 10, 32 << 20)
CASES = {
    "logsumexp": {"r": 1024, "k": 50257},
    "softmax": {"r": 1024, "k": 50257},
    "variance": {"r": 1024, "k": 50257},
    "logsumexp_axis0": {"r": 4096, "k": 8192},
    "attention": {"b": 2, "h": 8, "i": 1024, "j": 1024, "e": 64, "d": 64},
    "attention_causal": {"h": 8, "i": 1024, "j": 1024, "e": 64, "d": 64},
    "decode": {"h": 8, "j": 65536, "e": 128, "d": 128},
    "linear_logsumexp": {"r": 512, "v": 50257, "h": 1024},
    "layernorm_linear": {"r": 2048, "k": 4096, "n": 1024},
    "routing": {"i": 16384, "h": 16, "j": 256, "t": 4},
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_golden_c(name: str, update_golden: bool) -> None:
    w = cascades.WORKLOADS[name]()
    text = emit(schedule(w.cascade, CASES[name], {}, AVX2))
    path = GOLDEN / f"{name}.c"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs from what is printed; run pytest --update-golden and read the difference"
