"""Variables with our prefix that no key reads: whose they are, and which one was meant.

``SOTTOVOCE_PORT=8000`` sets nothing, and nobody should have to find that out by watching the port.
But the name may be somebody else's: a container's build, a script, or a cluster that tells every
process where the service called *sottovoce* is (``SOTTOVOCE_PORT=tcp://10.0.0.1:7688``). So such a
variable is a warning. One that is a key's twin but for an underscore is an error: nobody else
would write that.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from proxy.config_errors import EACH, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from proxy.config_errors import Schema

PREFIX: Final = "SOTTOVOCE_"
OTHERS: Final = frozenset({"SOTTOVOCE_MODEL", "SOTTOVOCE_CODEX", "SOTTOVOCE_TRACES"})
"""Variables that are no keys: of ``ask`` and ``chat``, and of this project's own tests."""
_ALIASES: Final = {"UPSTREAM": "SOTTOVOCE_UPSTREAM__0__BASE_URL"}
_LIKE: Final = 0.75
"""How alike names must be for one to be meant by the other."""
_FORM: Final = "a key's variable is SOTTOVOCE_TABLE__KEY; `sottovoce config show` lists the keys"


def variable(path: Iterable[str | int]) -> str:
    """Return the environment's twin of a key."""
    return PREFIX + "__".join(str(part) for part in path).upper()


def judged(
    names: Iterable[str], environ: Mapping[str, str], tree: Mapping[str, Any], schema: Schema
) -> tuple[list[Problem], list[Problem]]:
    """Judge variables that are the twin of no key.

    Args:
        names: The variables.
        environ: The environment.
        tree: What is configured: variables that it names are in use.
        schema: The keys.

    Returns:
        What is wrong, and what is only worth a warning.
    """
    used = OTHERS | set(_named(tree))
    services = [name.removesuffix("SERVICE_HOST") for name in environ if _is_service(name)]
    wrong, strange = list[Problem](), list[Problem]()
    for name in names:
        if name in used or any(_tells_of(service, name) for service in services):
            continue
        if meant := _flattened(schema).get(re.sub(r"_[0-9]{1,3}_", "_", name)):
            hint = f"two underscores part a table from its key: {meant}"
            wrong.append(Problem("sets nothing", name, hint))
        else:
            nearest = _nearest(name.removeprefix(PREFIX), schema)
            hint = f"did you mean {nearest}?" if nearest else _FORM
            strange.append(Problem("sets nothing", name, hint))
    return wrong, strange


def _named(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of variables that the configuration gives."""
    server, upstreams = tree.get("server"), tree.get("upstream")
    tables = [server, *(upstreams if isinstance(upstreams, list) else ())]
    for table in tables:
        if isinstance(table, dict):
            for key in ("access_token_env", "api_key_env"):
                if isinstance(name := table.get(key), str):
                    yield name


def _is_service(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith("_SERVICE_HOST")


def _tells_of(service: str, name: str) -> bool:
    """Say whether a cluster sets a variable for each process, to tell it of a service."""
    return name == f"{service}PORT" or name.startswith((f"{service}PORT_", f"{service}SERVICE_"))


def _twins(schema: Schema) -> Iterator[tuple[tuple[str, ...], str]]:
    for path in schema.fields:
        yield path, variable("0" if part == EACH else part for part in path)


def _flattened(schema: Schema) -> dict[str, str]:
    """Return the twins by their names with single underscores and without indices."""
    return {
        twin.replace("__0__", "__").replace("__", "_"): twin
        for path, twin in _twins(schema)
        if len(path) > 1
    }


def _nearest(rest: str, schema: Schema) -> str | None:
    """Return the twin that was probably meant by what follows the prefix."""
    by_name = {path[-1].upper(): twin for path, twin in reversed(list(_twins(schema)))}
    full = {name.removeprefix(PREFIX): twin for name, twin in _flattened(schema).items()}
    known = {**full, **by_name, **_ALIASES}
    found = get_close_matches(rest, known, n=1, cutoff=_LIKE)
    return known[found[0]] if found else None
