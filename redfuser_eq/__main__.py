"""The command line: `python -m redfuser_eq demo | explain | experiment`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import __version__
from .errors import RedfuserError

_TABLE_WIDTH = 170  # where the output is no terminal


class UserError(Exception):
    """A mistake in what was typed; printed without a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0, 1 for a result that is not right, 2 for a mistake in what was typed."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (UserError, RedfuserError) as error:
        print(f"redfuser_eq {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="redfuser_eq", description="Cascaded reductions to one-pass kernels, discovered by equality saturation."
    )
    parser.add_argument("--version", action="version", version=f"redfuser_eq {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    demo = commands.add_parser("demo", help="fuse four workloads on real data, check them against float64 and time them")
    demo.add_argument("--target", choices=("numpy", "cpu"), help="backend; the default is the best one that the machine allows")
    demo.set_defaults(run=_demo)

    explain = commands.add_parser("explain", help="explain what fusing a function of a file gives")
    explain.add_argument("function", metavar="FILE:FUNCTION", help="a Python file (or a module's name) and a function in it")
    explain.add_argument("--shapes", required=True, help="one shape for each array argument, such as 4x128,4x128; () is a scalar")
    explain.add_argument(
        "--dtype", default="float32", help="of the arrays; one for all, or one for each with commas between (default: float32)"
    )
    explain.add_argument("--rules", default="default", help="rule set: strict, default or fast")
    explain.add_argument("--without", default="", metavar="NAMES", help="themes or rules to leave out, with commas between")
    explain.add_argument("--numerics", default="default", choices=("strict", "default", "fast"))
    explain.add_argument("--device", help="for the estimates: cpu, h200 or a100")
    explain.set_defaults(run=_explain)

    experiment = commands.add_parser("experiment", help="passes of every workload with all laws and without each theme of them")
    experiment.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="only these; part of a name will do; may be repeated"
    )
    experiment.add_argument("--json", action="store_true", help="the results as JSON lines instead of a table")
    experiment.set_defaults(run=_experiment)
    return parser


def _console(**options: Any) -> Any:
    from rich.console import Console

    return Console(highlight=False, **options)


# ---- demo
def _demo(options: argparse.Namespace) -> int:
    from .demo.run import TOLERANCE, cases, images, measure

    console = _console()
    x, labels, origin = images()
    console.print(f"{len(x)} images of {x.shape[1]} pixels: {origin}", markup=False)
    wrong = 0
    for case in cases(x, labels):
        outcome = measure(case, options.target)
        wrong += not outcome.right
        console.rule(case.title, align="left", characters="-")
        print(outcome.fused.explain(*case.arrays).summary())
        verdict = "right" if outcome.right else f"WRONG, more than {TOLERANCE:g}"
        target = outcome.fused.report(*case.arrays).target
        print(f"\nerror {outcome.error:.1e} of the largest value, against float64: {verdict}")
        print(f"time  {1000 * outcome.seconds:.2f} ms fused ({target}), {1000 * outcome.numpy_seconds:.2f} ms as NumPy runs it\n")
    print("all right" if not wrong else f"{wrong} wrong")
    return 1 if wrong else 0


# ---- explain
def _explain(options: argparse.Namespace) -> int:
    import numpy as np

    from .api import optimize
    from .rules import resolve

    shapes = [_shape(s) for s in options.shapes.split(",")]
    dtypes = _dtypes(options.dtype, len(shapes))
    f, where = _function(options.function)
    try:
        rules = resolve(options.rules, options.numerics)
        if options.without:
            rules = rules - {n.strip() for n in options.without.split(",")}
        fused = optimize(f, rules=rules, numerics=options.numerics, device=options.device, target="numpy")
    except ValueError as error:
        raise UserError(str(error)) from error
    arrays = [np.broadcast_to(np.zeros((), d), s) for s, d in zip(shapes, dtypes, strict=True)]
    try:
        explanation = fused.explain(*arrays)
    except RedfuserError:
        raise
    except Exception as error:
        raise UserError(_blame(error, where, f"while tracing it on arrays of shapes {options.shapes}")) from error
    _console().print(explanation)
    return 0


def _shape(text: str) -> tuple[int, ...]:
    text = text.strip().lower()
    if text in ("()", "scalar"):
        return ()
    try:
        shape = tuple(int(n) for n in text.split("x"))
    except ValueError:
        raise UserError(f"--shapes: {text!r} is not a shape; write sizes with x between, such as 4x128") from None
    if any(n < 0 for n in shape):
        raise UserError(f"--shapes: {text!r} has a negative size")
    return shape


def _dtypes(text: str, count: int) -> list[Any]:
    from .promotion import numpy_dtype

    names = [n.strip() for n in text.split(",")]
    if len(names) not in (1, count):
        raise UserError(f"--dtype: {len(names)} dtypes for {count} shapes; give one for all, or one for each")
    return [numpy_dtype(n, "--dtype") for n in names] * (count if len(names) == 1 else 1)


def _function(text: str) -> tuple[Callable[..., Any], str]:
    """The function that FILE:FUNCTION names, and the file."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"{text!r} is not FILE:FUNCTION; write the file, a colon and the function's name")
    module = _load(place)
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        known = ", ".join(n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__)
        raise UserError(f"{place} has no function {name!r}; it defines {known or 'none'}")
    return value, getattr(module, "__file__", place) or place


def _load(place: str) -> Any:
    path = Path(place)
    if not place.endswith(".py") and not path.exists():
        try:
            return importlib.import_module(place)
        except ImportError as error:
            raise UserError(f"{place!r} is neither a file nor a module that can be imported ({error})") from error
    if not path.is_file():
        raise UserError(f"there is no file {place!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{place!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(_blame(error, str(path), "while running the file")) from error
    return module


def _blame(error: BaseException, where: str, when: str) -> str:
    """An error of the user's own code, with the line of theirs that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == Path(where)]
    line = f", line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    if isinstance(error, SyntaxError) and error.lineno:
        line = f", line {error.lineno}"
    return f"{where}{line}\n  {type(error).__name__} {when}: {error}"


# ---- experiment
def _experiment(options: argparse.Namespace) -> int:
    from .demo.workloads import WORKLOADS, named
    from .experiments import experiment, tables

    try:
        workloads = [named(n) for n in options.workload] or WORKLOADS
    except ValueError as error:
        raise UserError(str(error)) from error
    results = []
    progress = _console(stderr=True)
    with progress.status("") as status:
        for w in workloads:
            status.update(f"{w.name}", spinner_style="")
            results.extend(experiment([w]))
    if options.json:
        for r in results:
            print(json.dumps(asdict(r)))
        return 0
    console = _console()
    width = console.width if console.is_terminal else _TABLE_WIDTH
    console = _console(width=width)
    console.print("Passes over the streamed axis, rows of the e-graph and time: with all laws, and without each theme of them\n")
    for table in tables(results, width):
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
