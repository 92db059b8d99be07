"""The error of a failed measurement. A wrong request is an InvalidArgumentError."""


class BenchError(Exception):
    """A rank, a backend or a result failed. The command ends with status 1."""
