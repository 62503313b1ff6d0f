"""Contractions over pairs of 16-bit numbers in C: the register block's inner loop, and what packs its operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Cast, Expr, Load

from .c_expr import Elements, Names, Place, Scope
from .kernel import Array, Buffer, Operand, Pack

if TYPE_CHECKING:
    from .c_contract import ContractStatements

DIRECT = ("i8", "u8")  # arrays of these are packed without a float between
ROWS = 32  # of a panel at a time, while their cache lines are at hand


def pair_steps(names: Names, nv: int, mr: int, tag: str, a_i: str, panel: int) -> list[str]:
    """x[i][j] = sum over c of a[i][c] * b[c][j], two c at a time; nv: vectors of the compute type. Of an odd last c the pair's
    second number is not read in a, and is zero in b."""
    parts = 2 if names.k.real == "double" else 1
    n = nv // parts
    over_i = f"RF_UNROLL({mr}) for (int i = 0; i < {mr}; i++)"
    load = " ".join(f"P b{j} = ld_pairs(b + {j} * 2 * PAIR_LANES); IN_REGISTER(b{j});" for j in range(n))

    def step(broadcast: str) -> str:
        products = " ".join(f"s[i][{j}] = dot_{tag}(y, b{j}, s[i][{j}]);" for j in range(n))
        return f"{load} {over_i} {{ const P y = {broadcast}(a + i * {a_i}); {products} }}"

    return [f"sum_{tag} s[{mr}][{n}];",
            f"{over_i} RF_UNROLL({n}) for (int j = 0; j < {n}; j++) s[i][j] = (sum_{tag}){{0}};",
            f"for (; n >= 2; n -= 2, a += 2, b += {2 * panel}) {{", step("set1_pair"), "}",
            f"if (n > 0) {{ {step('set1_first')} }}",
            f"{over_i} RF_UNROLL({nv}) for (int j = 0; j < {nv}; j++) x[i][j] = of_{tag}(s[i][j / {parts}], j % {parts});"]  # fmt: skip


def pack_pairs(printer: ContractStatements, s: Pack, b: Buffer, base: str) -> list[str]:
    """Fill a buffer of pairs: panels of columns, or rows that are contiguous along the inner axis."""
    direct = _direct(printer, s.expr) if b.dtype == "i16" else None
    if b.panel:
        return _panels(printer, s, b, base) if direct is None else _panels_of(printer, direct, s, b, base)
    return _rows(printer, s, b, base) if direct is None else _rows_of(printer, direct, s, b, base)


def _direct(printer: ContractStatements, e: Expr) -> tuple[Array, Operand] | None:
    """The array of 8-bit integers that an expression only widens."""
    while isinstance(e, Cast) and e.dtype.itemsize > 1:
        e = e.args[0]
    array = printer.names.k.array(e.source) if isinstance(e, Load) else None
    if array is None or array.dtype not in DIRECT or not isinstance(e, Load):
        return None
    return array, Operand(e.source, e.dims)


def _total(printer: ContractStatements, axis: str) -> str:
    """How many elements of an axis the tile has."""
    return printer.counts.get(axis, printer.names.extent(axis))


def _places(printer: ContractStatements, c: str, j: str, at_c: str, at_j: str) -> dict[str, Place]:
    start_c, start_j = (printer.at[x].start if x in printer.at else "0" for x in (c, j))
    return {**printer.at, c: Place(start_c, at_c), j: Place(start_j, at_j)}


def _panels_of(printer: ContractStatements, direct: tuple[Array, Operand], s: Pack, b: Buffer, base: str) -> list[str]:
    *_, c, j = b.dims
    m = printer.memory(direct[1], (c, j))
    n_c, n_j = _total(printer, c), _total(printer, j)
    s_c, s_j = m.steps.get(c, "0"), m.steps.get(j, "0")
    depth = f"({printer.names.size(b.sizes[-2])})"
    return [f"for (int64_t c0 = 0; c0 < {n_c}; c0 += {ROWS}) for (int64_t p = 0; p < {n_j}; p += {b.panel})",
            f"pairs_{m.tag}({base} + p * {depth} + c0 * {b.panel}, {b.panel}, {m.base} + c0 * {s_c} + p * {s_j}, {s_c}, {s_j}, "
            f"rf_min({ROWS}, {n_c} - c0), {n_j} - p);"]  # fmt: skip


def _rows_of(printer: ContractStatements, direct: tuple[Array, Operand], s: Pack, b: Buffer, base: str) -> list[str]:
    *_, i, c = b.dims
    m = printer.memory(direct[1], (i, c))
    step = printer.names.step(b, len(b.dims) - 2)
    s_i, s_c = m.steps.get(i, "0"), m.steps.get(c, "0")
    return [f"for (int64_t i = 0; i < {_total(printer, i)}; i++)",
            f"shorts_{m.tag}({base} + i * {step}, {m.base} + i * {s_i}, {s_c}, {_total(printer, c)});"]  # fmt: skip


def _panels(printer: ContractStatements, s: Pack, b: Buffer, base: str) -> list[str]:
    """Any values: two rows of a panel at a time, the vector along the columns."""
    *_, c, j = b.dims
    n_c, n_j, cv = _total(printer, c), _total(printer, j), printer.names.var(c)
    depth = f"({printer.names.size(b.sizes[-2])})"
    rows = [Scope(frozenset(), []) for _ in (0, 1)]
    values = []
    for scope, at, mask in zip(rows, (cv, f"rf_min({cv} + 1, {n_c} - 1)"), ("m", "two"), strict=True):
        el = Elements(printer.names, printer.phase, _places(printer, c, j, at, "(p + l)"), j, [scope], "m")
        values.append(f"keep({mask}, {el.value(s.expr)})")
    return [f"for (int64_t c0 = 0; c0 < {n_c}; c0 += {ROWS})",
            f"for (int64_t p = 0; p < {n_j}; p += {b.panel}) for (int64_t l = 0; l < {b.panel}; l += LANES) {{",
            f"{b.dtype}_t *to = {base} + p * {depth} + 2 * l; const M m = tail({n_j} - p - l);",
            f"for (int64_t {cv} = c0; {cv} < rf_min(c0 + {ROWS}, {n_c}); {cv} += 2) {{",
            f"const M two = m_and(m, {cv} + 1 < {n_c} ? m_all() : m_none());", *rows[0].lines, *rows[1].lines,
            f"rf_st32(to + {cv} * {b.panel}, pair_{b.dtype}({values[0]}, {values[1]}));", "}", "}"]  # fmt: skip


def _rows(printer: ContractStatements, s: Pack, b: Buffer, base: str) -> list[str]:
    """Any values: the vector along the inner axis; whole vectors are stored, the padding takes what is past the end."""
    *_, i, c = b.dims
    if b.sizes[-1].pad < printer.names.k.lanes:
        raise IRError(f"{b.name!r}: a row of pairs is padded by a vector")
    iv, cv = printer.names.var(i), printer.names.var(c)
    scope = Scope(frozenset(), [])
    value = Elements(printer.names, printer.phase, _places(printer, i, c, iv, cv), c, [scope], "m").value(s.expr)
    n_c, step = _total(printer, c), printer.names.step(b, len(b.dims) - 2)
    return [f"for (int64_t {iv} = 0; {iv} < {_total(printer, i)}; {iv}++) for (int64_t {cv} = 0; {cv} < {n_c}; {cv} += LANES) {{",
            f"const M m = tail({n_c} - {cv});", *scope.lines, f"st_{b.dtype}({base} + {iv} * {step} + {cv}, {value});", "}"]  # fmt: skip
