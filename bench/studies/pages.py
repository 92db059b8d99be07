"""Pages with figures of stored results, and the check for other figures.

A page has blocks between `<!-- figures: NAME -->` and `<!-- end of figures -->`. Blocks are made
from bench/results. Outside of blocks no text may give a time, a ratio or a share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from studies import draw, panels, sentences
from studies.blocks import BLOCKS
from studies.catalogue import STUDIES
from studies.stored import FOLDER, Result, ResultError, Results, load

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- figures: (.*?) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
FIGURE = re.compile(r"\b\d[\d.,]*\s?(?:ns|us|ms|s|x|%|times|GB/s|MB/s)(?!\w)")
QUOTED = re.compile(r"```[\s\S]*?```|`[^`\n]*`|^    .*$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """section: the heading whose text is checked, "" for all of it."""

    path: str
    section: str = ""


PAGES = (
    Page("README.md", "## Performance"),
    Page("docs/performance.md"),
    Page("docs/codecs.md", "## Figures"),
    Page("docs/planning.md", "## Beside emulated clusters"),
    Page("docs/errors.md", "## How fast"),
)


def results_of(folder: Path = FOLDER) -> dict[str, Result]:
    return {name: load(name, folder) for name in STUDIES}


def filled(text: str, results: Results) -> str:
    """The page with new blocks. Raises ResultError for an unknown block."""

    def make(found: re.Match[str]) -> str:
        start, name, _, end = found.groups()
        if name not in BLOCKS:
            raise ResultError(f"expected a block out of {', '.join(BLOCKS)}; got {name!r}")
        return f"{start}{BLOCKS[name](results)}\n{end}"

    return BLOCK.sub(make, text)


def strays(text: str, section: str = "") -> list[str]:
    """Figures without a result: those outside of blocks and code."""
    if section:
        _, found, text = text.partition(f"{section}\n")
        if not found:
            raise ResultError(f"expected a section {section!r}, found none")
        text = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = QUOTED.sub("", BLOCK.sub("", text))
    return [found.group() for found in FIGURE.finditer(text)]


def faults(results: Results, root: Path = ROOT, folder: Path = FOLDER) -> list[str]:
    """Differences between pages or pictures and the results."""
    found, used = [], set()
    for page in PAGES:
        text = (root / page.path).read_text()
        used |= {match.group(2) for match in BLOCK.finditer(text)}
        if filled(text, results) != text:
            found.append(f"{page.path}: its figures are not those of bench/results")
        found += [f"{page.path}: no result says {each!r}" for each in strays(text, page.section)]
    found += [f"no page shows the block {name}" for name in BLOCKS if name not in used]
    for name, result in results.items():
        if draw.stamp_of(folder / f"{name}.png") != stamp(result):
            found.append(f"{name}.png does not show the result of {result.facts['time']}")
    return found


def refresh(results: Results, root: Path = ROOT, folder: Path = FOLDER) -> list[str]:
    """Writes new pages and pictures. Returns faults that need a writer."""
    for page in PAGES:
        file = root / page.path
        file.write_text(filled(file.read_text(), results))
    for result in results.values():
        picture(result, folder)
    return faults(results, root, folder)


def picture(result: Result, folder: Path) -> None:
    """Draws a picture, unless no limit or peer was measured."""
    shown = panels.panels_of(result)
    if shown:
        title, machine = sentences.of(result), sentences.machine(result)
        draw.draw(folder / f"{result.study}.png", shown, title, machine, stamp(result))


def stamp(result: Result) -> str:
    """A hash of the picture's content, with its sentence and machine."""
    return f"{result.stamp}: {sentences.of(result)}"
