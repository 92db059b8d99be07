"""Files for the output of ranks, in a folder that other users may write to."""

import os
from contextlib import suppress


def new_log(folder: str | os.PathLike[str], rank: int) -> int:
    """A descriptor of a new file rank-N.log. A file or link with this name is removed first."""
    path = os.path.join(folder, f"rank-{rank}.log")
    with suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)
