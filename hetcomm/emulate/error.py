"""The errors of this package."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class ClusterError(Exception):
    """An impossible cluster. Names file and key, the expected and the given value, and the
    remedy."""

    def __init__(self, key: str, expected: str, got: str, remedy: str, file: str = "") -> None:
        super().__init__(key, expected, got, remedy, file)
        self.key = key
        self.expected = expected
        self.got = got
        self.remedy = remedy
        self.file = file

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.file else self.key
        return f"{where}: expected {self.expected}, got {self.got}; {self.remedy}"

    def within(self, file: str) -> "ClusterError":
        """The same error, with the name of its file."""
        return ClusterError(self.key, self.expected, self.got, self.remedy, file)


class RefusedError(ClusterError):
    """This machine refuses to emulate a valid cluster."""


MASKED = (
    "a container that masks /proc or /sys forbids this: run it with unmasked system paths "
    "(docker: --security-opt systempaths=unconfined) or privileged"
)
# Exhausted resources have their own remedies.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or pids.max of the control group)",
    errno.ENOMEM: "free memory, or raise memory.max of the control group",
}


@contextmanager
def refusal(key: str, expected: str, remedy: str) -> Iterator[None]:
    """Turns the kernel's errors in this block into a RefusedError with the name of the errno."""
    try:
        yield
    except OSError as error:
        raise _refused(key, expected, error, remedy) from error
    except Exception as error:
        # pyroute2's NetlinkError carries an errno in `code` but is no OSError.
        code = getattr(error, "code", None)
        if not isinstance(code, int):
            raise
        raise _refused(key, expected, OSError(code, str(error)), remedy) from error


def _refused(key: str, expected: str, error: OSError, remedy: str) -> RefusedError:
    remedy = _REMEDIES.get(error.errno or 0, remedy)
    return RefusedError(key, expected, describe(error), remedy)


def describe(error: OSError) -> str:
    """`EPERM (Operation not permitted)`."""
    name = errno.errorcode.get(error.errno or 0, "an error without errno")
    return f"{name} ({error.strerror or error})"
