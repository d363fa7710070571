"""Hash chains: whatever is done to a row shows, and at the right one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.core import canonical, chain
from apps.core.chain import Link, Verdict


def chain_of(length: int) -> list[Link]:
    links: list[Link] = []
    previous = None
    for number in range(1, length + 1):
        document = {"n": number, "text": f"ü {number}"}
        made = chain.link(previous, document)
        links.append(Link(number, previous, made, document))
        previous = made
    return links


def head(links: list[Link]) -> tuple[int, str | None]:
    return (links[-1].sequence, links[-1].hash) if links else (0, None)


def test_a_whole_chain() -> None:
    links = chain_of(5)
    assert chain.verify(iter(links), head(links)) == Verdict(True, 5)
    assert chain.verify([], (0, None)) == Verdict(True, 0)
    assert links[0].hash == canonical.digest({"n": 1, "text": "ü 1", "previous_hash": None})
    assert links[1].hash == canonical.digest({"n": 2, "text": "ü 2", "previous_hash": links[0].hash})


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("harm", ["edited", "edited and hashed", "removed", "inserted", "swapped"])
def test_harm_shows(at: int, harm: str) -> None:
    links = chain_of(5)
    end = head(links)
    broken = at + 1
    if harm.startswith("edited"):
        document = {**links[at].document, "n": 99}
        links[at] = replace(links[at], document=document)
        if harm == "edited and hashed":
            links[at] = replace(links[at], hash=chain.link(links[at].previous_hash, document))
            broken = at + 2
    elif harm == "removed":
        del links[at]
        broken = at + 2 if at < 4 else 5
    elif harm == "inserted":
        document = {"n": 0}
        previous = links[at].hash
        links.insert(at + 1, Link(at + 2, previous, chain.link(previous, document), document))
        broken = at + 2
    else:
        other = (at + 1) % 5
        links[at], links[other] = links[other], links[at]
        broken = links[min(at, other)].sequence
    verdict = chain.verify(links, end)
    assert not verdict.valid
    if harm == "inserted":
        assert verdict.first_broken in (at + 2, at + 3)
    else:
        assert verdict.first_broken == broken
    assert verdict.checked_through == (verdict.first_broken or 0) - 1 or harm in (
        "removed",
        "inserted",
        "swapped",
    )


@pytest.mark.parametrize("kept", range(5))
def test_a_cut_tail_shows(kept: int) -> None:
    links = chain_of(5)
    verdict = chain.verify(links[:kept], head(links))
    assert (verdict.valid, verdict.checked_through, verdict.first_broken) == (False, kept, kept + 1)


@pytest.mark.parametrize("end", [(5, "0" * 64), (4, None), (6, None), (5, None)])
def test_a_head_that_is_not_the_end(end: Any) -> None:
    assert not chain.verify(chain_of(5), end).valid


def test_a_lengthened_chain_shows() -> None:
    links = chain_of(6)
    assert not chain.verify(links, head(links[:5])).valid
