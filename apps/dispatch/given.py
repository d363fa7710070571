"""What an attempt is given by way of secrets, and whether the kernel takes all of it (secrets-and-artifacts.md §4.3).

Values are looked up for each start anew and kept nowhere: they go to the shim, which masks them in all it writes.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from apps.dispatch.errors import EnvironmentTooLarge
from apps.dispatch.launcher.hooks import after_argv, before_argv
from apps.dispatch.launcher.spec import CommandBody, ScriptBody, ShellBody, to_bytes
from apps.tasks.secrets import FILE, SecretUses
from apps.vault import recipes, resolving
from apps.vault.errors import SecretsNotAvailable
from apps.vault.recipes import Recipe

# A value beyond that is left in a file: a quarter of what one string of a process may hold.
BY_VARIABLE_BYTES = 32_768
NAMED = 5
# Linux: one string ends at 32 pages; all strings and the pointers to them take a quarter of the stack, between these.
_STRING = 131_072
_LEAST, _MOST = 131_072, 6 * 1_048_576
_POINTER = 8
# What the shim adds: paths of the attempt's folder, and what a shell makes of a program without a first line.
_ADDED = 16_384
# More than the names, ids and paths take that each run has of its own.
_OF_A_RUN = 32_768


@dataclass(frozen=True)
class Given:
    """By variable; `files` are values to be left in files, by the variable that names the file."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    mask: tuple[tuple[str, str], ...] = field(default=(), repr=False)


NOTHING = Given()


def secrets_of(project_id: str, recipe: Recipe, uses: SecretUses) -> Given:
    """The values of an attempt's secrets; one statement, none where it has none.

    Raises SecretsNotAvailable where one does not exist, SecretDisabled, SecretUnavailable.
    """
    references = {one.name: one.secret_ref for one in recipe.bindings if isinstance(one, recipes.Secret)}
    if references.keys() != {use.variable for use in uses}:
        raise SecretsNotAvailable
    if not uses:
        return NOTHING
    found = resolving.by_reference(project_id, references.values())
    if found is None:
        raise SecretsNotAvailable
    variables, files = {}, {}
    for use in uses:
        value = found[references[use.variable]]
        if use.way == "file" or len(value.encode()) > BY_VARIABLE_BYTES:
            files[use.variable + FILE] = value
        else:
            variables[use.variable] = value
    return Given(
        variables, files, tuple(dict.fromkeys((use.secret, found[references[use.variable]]) for use in uses))
    )


def environment(recipe: Recipe, given: Given) -> dict[str, str]:
    """Values and secrets as variables, within the limits of §4.3; raises EnvironmentTooLarge."""
    values = {one.name: one.value for one in recipes.checked(recipe) if isinstance(one, recipes.Public)}
    values |= given.variables
    sizes = _sizes(values)
    if (
        len(values) > recipes.MAX_BINDINGS
        or sum(sizes.values()) > recipes.MAX_TOTAL_BYTES
        or any(len(to_bytes(value)) > recipes.MAX_VALUE_BYTES for value in values.values())
    ):
        raise EnvironmentTooLarge(names=_biggest(sizes))
    return values


def surely_fits(
    env: Mapping[str, str], body: CommandBody | ShellBody | ScriptBody, before: str | None, after: str | None
) -> bool:
    """Whether these leave room for whatever variables each run adds, so that no run of them need be measured."""
    try:
        check_size({**env, "": "=" * _OF_A_RUN}, body, before, after)
    except EnvironmentTooLarge:
        return False
    return True


def check_size(
    env: Mapping[str, str], body: CommandBody | ShellBody | ScriptBody, before: str | None, after: str | None
) -> None:
    """That the kernel starts a process with these variables and arguments; raises EnvironmentTooLarge."""
    sizes = _sizes(env)
    # A name, `=`, a value, the end of the string, and a pointer to it.
    variables = sum(sizes.values()) + len(sizes) * (2 + _POINTER)
    argv = max(map(_argv_size, _argvs(body, before, after)))
    if variables + argv + _ADDED > _room() or any(size + 2 > _STRING for size in sizes.values()):
        raise EnvironmentTooLarge(names=_biggest(sizes))


def _argvs(
    body: CommandBody | ShellBody | ScriptBody, before: str | None, after: str | None
) -> Iterable[Iterable[bytes]]:
    if isinstance(body, CommandBody):
        yield map(to_bytes, body.argv)
    elif isinstance(body, ShellBody):
        yield map(to_bytes, (body.text, *body.args))
    else:
        longest = max(body.interpreter, key=lambda candidate: sum(map(len, candidate)))
        yield map(to_bytes, (*longest, *body.args))
    if before is not None:
        yield before_argv(to_bytes(before))
    if after is not None:
        yield after_argv(to_bytes(after))


def _argv_size(argv: Iterable[bytes]) -> int:
    return sum(len(argument) + 1 + _POINTER for argument in argv)


def _room() -> int:
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    quarter = _MOST if soft == resource.RLIM_INFINITY else soft // 4
    return max(_LEAST, min(_MOST, quarter))


def _sizes(values: Mapping[str, str]) -> dict[str, int]:
    return {name: len(to_bytes(name)) + len(to_bytes(value)) for name, value in values.items()}


def _biggest(sizes: Mapping[str, int]) -> str:
    """The names of what takes most, with how much, in a line; never a value."""
    found = sorted(sizes, key=lambda name: -sizes[name])[:NAMED]
    shown = (name[:64] if name.isprintable() else "?" for name in found)
    return ", ".join(f"{name} ({sizes[real]:,})" for name, real in zip(shown, found, strict=True))
