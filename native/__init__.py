"""Compiles the pipeline: ``python -m native`` builds a wheel for this machine.

The source stays what it is, typed Python; mypyc makes C of it, and a C compiler an extension module
of each module. An interpreter that finds both takes the extension. What is compiled is what every
event and every request passes; all else gains nothing from it.
"""

from typing import Final

COMPILED: Final = (
    "accepted",
    "attempts",
    "attribution",
    "block",
    "closing",
    "conclusion",
    "continuation",
    "deadline",
    "dialect",
    "discretion",
    "echo",
    "giveaways",
    "history",
    "hop",
    "hops",
    "identity",
    "intake",
    "intercept",
    "items",
    "jsonplaces",
    "jsonspans",
    "jsontext",
    "lifecycle",
    "matching",
    "members",
    "outbox",
    "placing",
    "prefixes",
    "quota",
    "reader",
    "request",
    "response",
    "restore",
    "rounds",
    "run",
    "shown",
    "splice",
    "sse",
    "survey",
    "tally",
    "terminal",
    "toolset",
    "turn",
    "usage",
    "view",
)
"""The modules of the pipeline that are compiled.

Never those with exceptions, with a subclass of a tuple, or with dataclasses whose fields are of
types that only a type checker imports: a compiled class knows nothing of them.
"""
