"""The command of the benchmark: `python -m benchmarks`, from the top of the checkout."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import machine, plot, records, report
from .cells import WAYS, Cell, select
from .figures import Rounds
from .measure import Failed, measure

__all__ = ["main"]

_HERE = Path(__file__).parent
_QUICK_REPETITIONS = 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description="Time cleanups of large nodes.")
    parser.add_argument("--quick", action="store_true", help="1,000 and 10,000 rules only, 3 repetitions")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only cells such as owned/nft/50000, owned, */nft/*",
    )
    parser.add_argument(
        "--repeat", type=_positive, metavar="N", help="repetitions (default 7, of the largest nodes 3)"
    )
    parser.add_argument("--way", action="append", default=[], choices=WAYS, help="only these ways")
    parser.add_argument(
        "--output", type=Path, default=_HERE / "results.json", metavar="FILE", help="default: benchmarks/results.json"
    )
    parser.add_argument("--record", action="store_true", help="keep the results and write docs/performance.md anew")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing, write docs/performance.md from what is kept"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cells and end")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main() -> int:
    """Measure what the arguments ask for; return 1 if something could not be measured or a bar was missed."""
    parser = _parser()
    options = parser.parse_args()
    cells = select(options.only, quick=options.quick, ways=options.way)
    if not cells:
        parser.error("--only, --way: no cell fits")
    if options.record and (options.quick or options.way):
        parser.error("--record keeps whole cells only")
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    if options.record or options.render:
        try:
            plot.find()  # better known before it is measured for long
        except plot.MissingLibrary as error:
            parser.error(str(error))
    recorded = _HERE / "recorded.json"
    if options.render:
        records.render(*records.read(recorded))
        return 0
    if os.geteuid() != 0:
        parser.error("measuring needs root; it works in network namespaces of its own only")
    repeat = options.repeat or (_QUICK_REPETITIONS if options.quick else None)
    measured, failures = _measure(cells, repeat)
    facts = machine.describe()
    print("\n".join(report.plain(table) for table in (
        report.times_table(measured), report.growth_table(measured), report.bars_table(measured)
    ) if len(table) > 1))  # fmt: skip
    print(machine.line(facts))
    if options.record and options.only and recorded.exists():
        measured = {**records.read(recorded)[1], **measured}  # in the order of cells, as `report` takes them
    output = recorded if options.record else options.output
    records.write(output, facts, measured)
    print(f"written: {os.path.relpath(output)}")
    if options.record:
        records.render(facts, measured)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return int(bool(failures or report.missed(measured)))


def _measure(cells: tuple[Cell, ...], repeat: int | None) -> tuple[dict[str, Rounds], list[Failed]]:
    measured: dict[str, Rounds] = {}
    failures = []
    for cell in cells:
        try:
            measured[cell.name] = measure(cell, repeat)
        except Failed as failure:  # the other cells are worth measuring
            failures.append(failure)
            print(f"FAILED: {failure}", file=sys.stderr, flush=True)
    return measured, failures


if __name__ == "__main__":
    sys.exit(main())
