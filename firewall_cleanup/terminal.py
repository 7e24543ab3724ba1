"""A report on a terminal: in colour, and laid out for its width. The only module that imports rich."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from .plan_text import Line, gap

__all__ = ["show"]

_STYLES = {
    "title": "bold",
    "group": "bold cyan",
    "count": "cyan",
    "object": "",
    "evidence": "dim",
    "reason": "italic",
    "good": "bold green",
    "bad": "bold red",
    "plain": "",
}
# What continues stands this much deeper.
_DEEPER = 4


def show(lines: Iterable[Line], console: Console | None = None) -> None:
    """Print the lines; NO_COLOR, TERM and the width of the terminal are respected."""
    console = console or Console()
    for line in lines:
        for text in laid_out(line, console.width):
            # What is still too long is one word: it is left to the terminal, so that it can be copied.
            console.print(text, soft_wrap=True, highlight=False)


def laid_out(line: Line, width: int) -> Iterator[Text]:
    """Yield the line, in several if it is too long for the width: first between its parts, then between words.

    Words, and so names, stay whole. They are text and never markup.
    """
    margin = " " * (line.indent + _DEEPER)
    text, used = Text(" " * line.indent), line.indent
    fresh = True
    for index, part in enumerate(line.parts):
        before = gap(index, part)
        if not fresh and used + cell_len(before + part.text) > width:
            yield text
            text, used, before, fresh = Text(margin), len(margin), "", True
        for number, word in enumerate(part.text.split(" ")):
            space = " " if number else before
            if not fresh and used + cell_len(space + word) > width:
                yield text
                text, used, space = Text(margin), len(margin), ""
            text.append(space + word, style=_STYLES[part.role])
            used += cell_len(space + word)
            fresh = False
    yield text
