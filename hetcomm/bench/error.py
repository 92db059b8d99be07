"""A measurement that failed, as opposed to one that was asked for wrongly."""


class BenchError(Exception):
    """A rank, a backend or a result that failed; the command then ends with status 1."""
