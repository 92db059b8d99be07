"""The result of each study in a sentence, for its picture and README."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from studies.model import MPIS, Verdict
from studies.provenance import MUCH
from studies.stored import Result, digits_of, in_words, time_text

SHAPED = "gbit"


def of(result: Result) -> str:
    text = SENTENCES[result.study](result)
    return f"{text} (QUICK RUN, no measurement)" if result.quick else text


def spread(ratios: Iterable[float]) -> str:
    """ "1.003 to 1.016"."""
    ordered = sorted(ratios)
    ends = ordered[0], ordered[-1]
    digits = max(map(digits_of, ends))
    return " to ".join(dict.fromkeys(f"{ratio:.{digits}f}" for ratio in ends))


def machine(result: Result) -> str:
    """Machine, versions and commit of a result."""
    facts = result.facts
    here, versions = facts["machine"], facts["versions"]
    kernel = ".".join(here["kernel"].split(".")[:2])
    names = {"openmpi": "Open MPI", "mpich": "MPICH", "torch": "torch", "ucx": "UCX"}
    known = [f"{name} {versions[key]}" for key, name in names.items() if versions.get(key)]
    known += [control] if (control := congestion_control([result])) else []
    where = f"{here['cores']} cores of {here['processor']}, Linux {kernel}"
    text = f"{where}; {', '.join(known)}; {facts['time'][:10]}, {commit(result)}"
    if here.get("busy", 0) > MUCH:
        text += f"; DISTURBED: other work took {here['busy']:.0%} of the processors"
    return text


def congestion_control(results: Iterable[Result]) -> str:
    """ "TCP with bbr" of the links; empty without links."""
    links = [each.link for result in results for each in result.outcomes if each.link]
    found = sorted({link["congestion"] for link in links if "congestion" in link})
    return f"TCP with {' and '.join(found)}" if found else ""


def commit(result: Result) -> str:
    """ "commit 1234567", with the number of changed files, and whether the run was quick."""
    facts = result.facts
    words = f"commit {facts['commit'][:7]}" if facts["commit"] else "no commit"
    if facts.get("changed"):
        words += f" and {len(facts['changed'])} changed files"
    return f"{words}, QUICK RUN" if result.quick else words


def _shares(verdicts: Iterable[Verdict]) -> list[float]:
    """The time of hetcomm divided by that of the better MPI."""
    return [1 / each.ratio for each in verdicts]


def _faster(result: Result, what: str) -> str:
    ratios = [each.ratio for each in result.of("mpi")]
    count = sum(ratio > 1 for ratio in ratios)
    return (
        f"{what} are faster than with the better MPI in {count} of {len(ratios)} cases: "
        f"{spread(ratios)} times as fast"
    )


def _many_ranks(result: Result) -> str:
    cores = result.facts["machine"]["cores"]
    where = " and ".join(each.where.partition(" ")[0] for each in result.of("mpi"))
    shares = spread(_shares(result.of("mpi")))
    return (
        f"On {cores} cores an all_reduce of 8 B of {where} ranks takes {shares} times as long as "
        "with the better MPI"
    )


def _bridge_limit(result: Result) -> str:
    shaped = [each for each in result.of("bound") if SHAPED in each.where]
    least: dict[str, str] = {}
    for each in shaped:
        link = in_words(each.where).partition(" over ")[2].partition(",")[0]
        least.setdefault(link, each.what.partition(" ")[2])
    sizes = " and ".join(f"{size} over {link}" for link, size in least.items())
    return (
        f"From {sizes} on, an all_reduce takes {spread(each.ratio for each in shaped)} times "
        "the least that plain TCP needs"
    )


def _bound(what: str) -> Callable[[Result], str]:
    return lambda result: (
        f"{what} {spread(each.ratio for each in result.of('bound'))} times the least that plain "
        "TCP needs"
    )


def _small_messages(result: Result) -> str:
    shares = spread(_shares(result.of("mpi")))
    return f"A small all_reduce over a link takes {shares} times as long as with the better MPI"


def _overlap(result: Result) -> str:
    by = {
        name: spread(
            result.bars[f"{each.where}, {each.what}: step"]
            / result.bars[f"{each.where}, {each.what}: compute"]
            for each in result.of("longer part")
            if each.what.endswith(name)
        )
        for name in ("hetcomm", "gloo")
    }
    return (
        f"A step of DDP takes {by['hetcomm']} times as long as computing alone, with gloo "
        f"{by['gloo']}"
    )


def _start_up(result: Result) -> str:
    def least(*names: str) -> list[str]:
        return [
            time_text(min(result.bars[f"{name}: {what}"] for name in names))
            for what in ("from exec", "after imports")
        ]

    whole, joining = least("hetcomm")
    text = f"The first result of 2 ranks comes {whole} after exec, {joining} of it for joining"
    if mpis := [name for name in MPIS if f"{name}: from exec" in result.bars]:
        text += f" (the better MPI, by mpiexec: {', '.join(least(*mpis))})"
    return text


def _codec_rates(result: Result) -> str:
    def shares(call: str) -> str:
        found = [each for each in result.of("copies") if each.what.endswith(f"float32, {call}")]
        return spread(1 / each.ratio for each in found)

    return (
        f"One core encodes float32 gradients at {shares('encode')} times the rate of a copy, and "
        f"decodes at {shares('decode')} times"
    )


def _codec_links(result: Result) -> str:
    slow = [each for each in result.of("codec") if "1gbit" in each.where]
    ratios = [each.ratio for each in slow if "gradients" in each.what]
    return f"Over 1 Gbit/s a codec makes an all_reduce of gradients {spread(ratios)} times as fast"


def _scale(result: Result) -> str:
    seconds = {key: value for key, value in result.bars.items() if key.endswith(": seconds")}

    def most(*ranks: int) -> str:
        words = [f", {number} ranks, " for number in ranks]
        found = [value for key, value in seconds.items() if any(word in key for word in words)]
        return time_text(max(found)) if found else "an unknown time"

    return (
        f"One core chooses and plans a collective of 768 ranks in {most(768)} at most, of 8,192 "
        f"in {most(8184, 8192)}"
    )


SENTENCES: dict[str, Callable[[Result], str]] = {
    "island-latency": lambda result: _faster(result, "Small all_reduces of 2 ranks on one host"),
    "island-bandwidth": lambda result: _faster(result, "Large collectives on one host"),
    "many-ranks": _many_ranks,
    "bridge-limit": _bridge_limit,
    "bridge-collectives": _bound("Over 1 Gbit/s the other collectives take"),
    "layouts": _bound("With ranks in any order an all_reduce takes"),
    "uneven-islands": _bound("Between islands of unlike sizes an all_reduce takes"),
    "small-messages": _small_messages,
    "staging": _bound("Between emulated accelerators an all_reduce takes"),
    "overlap": _overlap,
    "start-up": _start_up,
    "scale": _scale,
    "codec-rates": _codec_rates,
    "codec-links": _codec_links,
}
