"""A case: a job, its calls, and one injection. Seed and number decide all of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property

SHARED = 32  # cases of neighbouring numbers whose harmless injections share a job
SIZES = (2, 2, 3, 3, 4, 4, 5, 6)


@dataclass(frozen=True)
class Layout:
    """hosts: the place of each rank, as in "aab". vendors: the letter of each rank, of job.py.
    hostile: the seed of hostile emulated devices; 0: friendly ones. nics: the number of NICs of
    each emulated host, in alphabetical order, as in "23"; "": one each."""

    hosts: str
    vendors: str
    hostile: int
    nics: str = ""

    @property
    def size(self) -> int:
        return len(self.hosts)

    def __str__(self) -> str:
        hostile = f" hostile {self.hostile}" if self.hostile else ""
        nics = f" with {'+'.join(self.nics)} NICs" if self.nics else ""
        return f"{self.hosts}/{self.vendors}{nics}{hostile}"


@dataclass(frozen=True)
class Case:
    """vendors: whether the machine has emulated ones."""

    seed: int
    number: int
    kind: str
    vendors: bool

    @cached_property
    def chance(self) -> random.Random:
        """For what the injection draws itself. A case is used once."""
        return random.Random(f"{self.seed}/{self.number}/{self.kind}")

    @cached_property
    def moment(self) -> float:
        """Seconds from the first call to the injection."""
        return self._alone().choice((0.0, 0.002, 0.01, 0.05, 0.1, 0.2, 0.4))

    @cached_property
    def calls(self) -> int:
        """At least so many; calls go on until the injection is over."""
        return self._alone().randrange(3, 16)

    @cached_property
    def work_seed(self) -> int:
        return self._alone().randrange(1 << 30)

    def _alone(self) -> random.Random:
        """A new one with the same numbers, so no property depends on the use of another."""
        return random.Random(f"{self.seed}/{self.number}")

    def larger(self) -> Layout:
        """At least three ranks, in this process's own network."""
        made = self.layout(False, False)
        return (
            made
            if made.size > 2
            else replace(made, hosts=made.hosts + "b", vendors=made.vendors + "c")
        )

    def layout(self, shared: bool, cluster: bool) -> Layout:
        """shared: that of all harmless cases around this number."""
        number = self.number // SHARED if shared else self.number
        chance = random.Random(f"{self.seed}/layout/{number}/{shared}/{cluster}")
        size = chance.choice(SIZES)
        names = "abc"[: chance.randint(2 if cluster else 1, min(3, size))]
        places = list(names) + chance.choices(names, k=size - len(names))
        chance.shuffle(places)
        # Vendors of hosts, or of ranks alone.
        mixed = chance.choice(("c", "c", "cn", "na", "cna"))
        of_host = {name: chance.choice(mixed) for name in names}
        by_host = cluster or chance.random() < 0.5
        vendors = "".join(of_host[at] if by_host else chance.choice(mixed) for at in places)
        hostile = chance.choice((0, chance.randrange(1, 1000))) if set(vendors) != {"c"} else 0
        if not self.vendors:
            vendors, hostile = "c" * size, 0
        return Layout("".join(places), vendors, hostile)
