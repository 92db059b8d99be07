"""The type of the fixture `launch`."""

from collections.abc import Callable
from typing import Any

# launch(ranks, layout, *options of trainer.py) -> the lines of the metrics file
Launch = Callable[..., list[dict[str, Any]]]
