"""`python -m benchmarks.suite`: measure, record, and draw the picture; `--check` reads what was recorded and no more.

    make bench                                            # all figures, some minutes
    make bench TRACES=DIR ARGS="E2 D2LPM"                 # figures whose name has one of these words
    python -m benchmarks.suite --commit REV               # our code of another commit
    python -m benchmarks.suite --check                    # status 1 if a figure has fallen beside the pinned twin
    python -m benchmarks.suite --page                     # draw the picture again from the records

Peers are measured where they are installed: `pip install --no-deps ai-dynamo-runtime ray`.
"""

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.suite import page
from benchmarks.suite.history import OURS, ROUNDS, Record, append, fallen, read
from benchmarks.suite.sides import MODULES, ROOT, TWIN, checkout, figures_of, git, measured, paths, versions

HISTORY = ROOT / "benchmarks" / "history.jsonl"
PLOT = ROOT / "docs" / "plots" / "speed.svg"


def machine() -> str:
    """Return the processor, its cores and the version of Python."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def is_changed() -> bool:
    """Whether tracked files differ from their commit, but for those that are written here."""
    written = [f":!{path.relative_to(ROOT)}" for path in (HISTORY, PLOT)]
    return bool(git("status", "--porcelain", "--untracked-files=no", "--", ".", *written))


def measure(words: list[str], rounds: int, commit: str | None) -> None:
    """Measure the figures with these words, print each, and record it if it is that of a commit in full."""
    tree = ROOT if commit is None else checkout(commit)
    recorded = rounds >= ROUNDS and (commit is not None or not is_changed())
    if not recorded:
        print(f"Nothing is recorded: files have changed since the commit, or there are fewer than {ROUNDS} rounds.")
    name = git("rev-parse", "--short=8", commit or "HEAD")
    sys.path[:0] = map(str, paths())
    for module in MODULES:
        for figure, sides in figures_of(module).items():
            if words and not any(word.lower() in figure.lower() for word in words):
                continue
            before = os.getloadavg()[0]
            us = measured(module, figure, [*sides, TWIN], tree, rounds)
            if not us:
                print(f"{figure}: its file is not here")
                continue
            rounded = {side: tuple(round(each, 3) for each in taken) for side, taken in us.items()}
            load = (round(before, 2), round(os.getloadavg()[0], 2))
            date = datetime.now(UTC).strftime("%Y-%m-%d")
            record = Record(figure, name, date, machine(), load, rounded, versions(list(us)))
            print(f"{figure}: {median(us[OURS]):,.1f} us, load {load[0]} to {load[1]}")
            for beside in list(us)[1:]:
                ratios = record.ratios(beside)
                print(f"    {beside}: {median(ratios):.2f} times ours ({min(ratios):.2f} to {max(ratios):.2f})")
            sys.stdout.flush()
            if recorded:
                append(HISTORY, record)


def check() -> int:
    """Print the figures that have fallen; 1 if there is one."""
    found = fallen(read(HISTORY), TWIN)
    for figure, (reached, last) in found.items():
        print(
            f"{figure}: {', '.join(f'{ratio:.2f}' for ratio in last)} of the {TWIN}'s speed in the last "
            f"{len(last)} records, {reached:.2f} before",
            file=sys.stderr,
        )
    return 1 if found else 0


def main() -> int:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="figures whose name has one of these (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each figure (default: %(default)s)")
    parser.add_argument("--commit", help="measure our code of this commit in place of the tree")
    parser.add_argument("--check", action="store_true", help="status 1 if a figure has fallen beside the pinned twin")
    parser.add_argument("--page", action="store_true", help="draw the picture from the records, and measure nothing")
    asked = parser.parse_args()
    if asked.check:
        return check()
    if not asked.page:
        measure(asked.words, asked.rounds, asked.commit)
    records = read(HISTORY)
    page.draw(PLOT, records, TWIN)
    return check()


if __name__ == "__main__":
    sys.exit(main())
