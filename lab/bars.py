"""Bars in a terminal that move in place; plain lines where there is no terminal.

Each bar is what someone gets, on a scale of the link, with a mark at what they were promised.
Escape sequences are those of ECMA-48 that every terminal emulator knows: cursor up, erase line,
colour.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

#: How often a line is written where nothing can be redrawn.
PLAIN_EVERY_S = 1.0
#: Cells of a bar at most, and what the text around it needs.
_WIDEST, _AROUND = 50, 46

_RED, _GREEN, _PLAIN = "31", "32", "0"


@dataclass(frozen=True)
class Bar:
    """One who was promised something. Rates in one unit."""

    name: str
    got: float
    promised: float
    #: Whether it wants anything now: who does not is not short of it.
    wants: bool


class Bars:
    """A block of bars below a heading, drawn again and again at the same place."""

    def __init__(self, full: float, unit: str, out: TextIO = sys.stdout) -> None:
        self.full = full
        self.unit = unit
        self._out = out
        self._in_place = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self._in_place and "NO_COLOR" not in os.environ
        encoding = (getattr(out, "encoding", None) or "ascii").lower()
        self._cells = ("█", "░", "│") if encoding.startswith("utf") else ("#", ".", "|")
        self._drawn = 0
        self._last_s = float("-inf")

    def draw(self, heading: str, bars: Sequence[Bar]) -> None:
        """Shows the state now, over what was shown before."""
        if not self._in_place:
            if time.monotonic() - self._last_s >= PLAIN_EVERY_S:
                self._last_s = time.monotonic()
                print(self.plain(heading, bars), file=self._out, flush=True)
            return
        lines = [heading, *(self.line(bar) for bar in bars)]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._out.write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)

    def settle(self) -> None:
        """What is shown stays; the next block goes below."""
        self._drawn = 0
        self._last_s = float("-inf")
        if self._in_place:
            print(file=self._out)

    def plain(self, heading: str, bars: Sequence[Bar]) -> str:
        """The state in one line."""
        parts = [f"{b.name} {b.got:.0f} (promised {b.promised:.0f})" for b in bars]
        return f"{heading}  {', '.join(parts)} {self.unit}"

    def line(self, bar: Bar) -> str:
        """One bar with its text."""
        width = max(10, min(_WIDEST, shutil.get_terminal_size().columns - _AROUND))
        filled = min(width, round(width * bar.got / self.full))
        mark = min(width - 1, round(width * bar.promised / self.full))
        full, empty, promise = self._cells
        cells = [full] * filled + [empty] * (width - filled)
        cells[mark] = promise
        drawn = "".join(cells)
        if self._colours and bar.wants:
            colour = _GREEN if bar.got >= 0.99 * bar.promised else _RED
            drawn = f"\x1b[{colour}m{drawn}\x1b[{_PLAIN}m"
        return f"  {bar.name:<10}{drawn} {bar.got:5.0f} {self.unit}, promised {bar.promised:.0f}"
