"""`python -m benchmarks COMMAND`: every module of this folder that has `register(commands)` is a command.

`register` adds a parser to an argparse subparsers object and sets `run` (options -> exit status) on it. Modules
import what they measure inside `run`, so that one command does not need another's dependencies.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measurements; nothing is asserted.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.startswith("_"):
            register = getattr(import_module(f"benchmarks.{module.name}"), "register", None)
            if register is not None:
                register(commands)
    options = parser.parse_args(argv)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
