"""State colours can be read, and told apart by eyes that mix up red and green or blue and yellow (panel.md §2)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

CSS = (Path(__file__).resolve().parents[2] / "static/panel/tokens.css").read_text(encoding="utf-8")
STATES = dict(re.findall(r'\[data-state="(\w+)"\] \{(.*?)\}', CSS, re.DOTALL))
PAGES = ("#ffffff", "#10161f")
IN_A_HISTORY = ("running", "succeeded", "failed", "timed_out", "lost", "cancelled", "waiting_approval")

Colour = tuple[float, float, float]
Matrix = tuple[Colour, Colour, Colour]
# Machado, Oliveira and Fernandes 2009, severity 1, over linear RGB.
SIGHTS: dict[str, Matrix] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
OKLAB_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
OKLAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def value(state: str, name: str, theme: int) -> str:
    """The colour of a state's mark, chip or ground; theme 0 is light, 1 dark."""
    found = re.search(rf"--{name}: (.*?);", STATES[state])
    assert found
    return str((re.findall(r"#[0-9a-f]{6}", found[1]) * 2)[theme])


def linear(colour: str) -> Colour:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return red, green, blue


def times(matrix: Matrix, colour: Colour) -> Colour:
    first, second, third = (sum(a * b for a, b in zip(row, colour, strict=True)) for row in matrix)
    return first, second, third


def oklab(colour: Colour, sight: Matrix) -> Colour:
    red, green, blue = (min(1.0, max(0.0, part)) for part in times(sight, colour))
    long, medium, short = (max(0.0, cone) ** (1 / 3) for cone in times(OKLAB_CONES, (red, green, blue)))
    return times(OKLAB, (long, medium, short))


def contrast(one: str, other: str) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    dark, light = sorted(
        sum(part * weight for part, weight in zip(linear(colour), weights, strict=True))
        for colour in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_states_can_be_read(theme: int) -> None:
    assert len(STATES) == 11
    for state in STATES:
        assert round(contrast(value(state, "chip", theme), value(state, "ground", theme)), 1) >= 5.9, state
        assert contrast(value(state, "mark", theme), PAGES[theme]) >= 3.05, state


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", [0, 1])
def test_states_of_a_history_can_be_told_apart(theme: int, sight: str) -> None:
    seen = {state: oklab(linear(value(state, "mark", theme)), SIGHTS[sight]) for state in IN_A_HISTORY}
    for one, other in itertools.combinations(IN_A_HISTORY, 2):
        distance = 100 * sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert distance >= 8, (one, other)


def token(name: str, theme: int) -> str:
    """A colour of the tokens, short forms written out; theme 0 is light, 1 dark."""
    found = re.search(rf"--{name}: (.*?);", CSS)
    assert found, name
    colours = [
        "#" + "".join(digit * 2 for digit in short) if len(short) == 3 else f"#{short}"
        for short in re.findall(r"#([0-9a-f]{6}|[0-9a-f]{3})\b", found[1])
    ]
    return (colours * 2)[theme]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *itertools.product(("text", "strong", "quiet", "brand"), ("page", "raised")),
        ("text", "hover"), ("quiet", "hover"), ("text", "line"), ("brand-strong", "brand-ground"),
        ("on-brand", "brand"), ("on-brand", "brand-strong"), ("danger", "page"), ("danger", "danger-ground"),
        ("warn", "warn-ground"), ("on-toast", "toast"), ("on-toast-link", "toast"),
        ("log-text", "log-ground"), ("log-quiet", "log-ground"), ("log-text", "log-raised"),
        ("log-brand", "log-raised"),
    ],
)  # fmt: skip
def test_text_can_be_read(text: str, ground: str, theme: int) -> None:
    assert contrast(token(text, theme), token(ground, theme)) >= 4.5


@pytest.mark.parametrize("theme", [0, 1])
def test_edges_of_fields_and_the_focus_can_be_seen(theme: int) -> None:
    for ground in ("page", "raised"):
        assert contrast(token("control-line", theme), token(ground, theme)) >= 3
        assert contrast(token("brand", theme), token(ground, theme)) >= 3
    assert contrast("#ffffff", token("danger-fill", theme)) >= 4.5
    assert contrast("#3d2c00", "#ffd54a") >= 4.5


def test_the_sixteen_colours_of_a_log_can_be_read() -> None:
    log = (Path(__file__).resolve().parents[2] / "static/panel/log.css").read_text(encoding="utf-8")
    colours = re.findall(r"\.ql-a-fg-(\d+) \{ color: (#[0-9a-f]{3,6}); \}", log)
    assert len(colours) == 16
    for number, colour in colours:
        full = colour if len(colour) == 7 else "#" + "".join(digit * 2 for digit in colour[1:])
        assert contrast(full, token("log-ground", 0)) >= 4.5, number
    for number, colour in re.findall(r"\.ql-a-bg-(\d+) \{ background: (#[0-9a-f]{6}); \}", log):
        assert contrast(colour, token("log-text", 0)) >= 3, number
