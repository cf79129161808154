"""Write docs/lifecycle.md from the tables of ``pipeline.lifecycle``, or check that it is current.

``python docs/generate.py`` writes, ``python docs/generate.py --check`` exits 1 when it is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline import lifecycle

TARGET = Path(__file__).parent / "lifecycle.md"


def events_table() -> list[str]:
    """Return one row for each event type."""
    return [
        "| event | item types | needs | leads to |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{kind}` | {', '.join(sorted(spec.item_types or ())) or 'any'} "
            f"| {spec.needs or 'anything'} | {spec.leads_to or 'no change'} |"
            for kind, spec in lifecycle.EVENTS.items()
        ),
    ]


def rules_table() -> list[str]:
    """Return one row for each deviation."""
    return [
        "| rule | says | public | codex | wire | held when sent | breaks |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| `{rule}` | {spec.text.replace('{event}', '*event*')} | {spec.public} "
            f"| {spec.codex} | {spec.wire} | {'yes' if spec.sent else ''} | {spec.breaks} |"
            for rule, spec in lifecycle.RULES.items()
        ),
    ]


def render() -> str:
    """Return the page: the module's essay, then the two tables."""
    essay = (lifecycle.__doc__ or "").splitlines()[2:]
    return "\n".join(
        [
            "# The lifecycle of a Responses stream",
            "",
            "Generated from `pipeline/lifecycle.py` by `make docs`.",
            "",
            *essay,
            "## Events",
            "",
            *events_table(),
            "",
            "## Rules",
            "",
            "`breaks` names the clients that break on the original: `codex`, `sdk`",
            "(`create(stream=True)`), `stream` (`responses.stream()`).",
            "",
            *rules_table(),
            "",
        ]
    )


def main() -> int:
    """Write or check the page; return the exit code."""
    page = render()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write("error: docs/lifecycle.md is stale\nhint: make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
