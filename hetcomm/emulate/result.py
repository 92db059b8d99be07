"""The result of an emulated run, and its text."""

from dataclasses import asdict, dataclass
from typing import Any

from .cluster import format_rate


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Bytes through one NIC, or through a zone's uplink, where host is "zone NAME". Headers are
    included. Rates in bits per second, None for unshaped."""

    host: str
    nic: str
    out_bytes: int
    in_bytes: int
    rate_out: int | None
    rate_in: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """Exit codes are per rank; a negative one is the signal that ended the rank."""

    exit_codes: tuple[int, ...]
    hosts: tuple[str, ...]  # [rank] -> host name
    links: tuple[LinkUse, ...]
    congestion: str  # the congestion control of all TCP connections
    notes: tuple[str, ...]  # one for each optional part that the machine refused
    duration: float  # seconds from the first rank's start to the last one's end
    failed_rank: int | None  # the first rank to fail, before any rank was ended
    timed_out: bool

    @property
    def ok(self) -> bool:
        return not self.timed_out and not any(self.exit_codes)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    def verdict(self) -> str:
        """One line: the end of the run, and the first failed rank."""
        if self.timed_out:
            failed = [rank for rank, code in enumerate(self.exit_codes) if code != 0]
            return (
                f"timed out after {self.duration:.1f} s; ranks that did not exit with 0: "
                f"{failed or 'none'}"
            )
        if self.failed_rank is not None:
            rank = self.failed_rank
            code = self.exit_codes[rank]
            how = f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"
            return f"rank {rank} on {self.hosts[rank]} {how} first; exit codes {self.exit_codes}"
        return f"all {len(self.exit_codes)} ranks finished in {self.duration:.1f} s"

    def table(self) -> str:
        """A row of bytes for each link."""
        rows = [("host", "nic", "out bytes", "in bytes", "rate out", "rate in")]
        rows += [
            (
                link.host,
                link.nic,
                f"{link.out_bytes:,}",
                f"{link.in_bytes:,}",
                format_rate(link.rate_out),
                format_rate(link.rate_in),
            )
            for link in self.links
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        )
