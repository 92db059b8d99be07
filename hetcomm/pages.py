"""Pages with facts of other ranks, on a terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

from hetcomm.printable import printable


def print_page(console: Console, page: RenderableType) -> None:
    """Prints the page. Control characters in its texts become "?"."""
    parts = console.render(page)
    console.print(
        Segments(Segment(printable(each.text), each.style, each.control) for each in parts), end=""
    )
