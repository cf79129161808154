from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from proxy.config_toml import KeyPath, key_lines, line_of

TEXT = '''\
# a comment with [brackets] and "quotes
plugins = ["./a.py", # one
  "b]#.py",
]
[server]
host = "127.0.0.1"   # [not.a.table]
"port" = 1
note = """
[fake]
key = 1
quotes at the end: \\"""""
literal = \'\'\'
also = "fake\'\'\'
after.dotted . 'key' = {inline = 1, list = [{a = "}"}]}

[recall . budgets]
rounds = 3

[[upstream]]
name = "a"
[[ upstream ]]
name = "b"
[upstream.extra]
deep = true
'''


def test_every_key_is_found_on_its_line() -> None:
    assert tomllib.loads(TEXT)["server"]["port"] == 1
    assert key_lines(TEXT) == {
        ("plugins",): 2,
        ("server",): 5,
        ("server", "host"): 6,
        ("server", "port"): 7,
        ("server", "note"): 8,
        ("server", "literal"): 12,
        ("server", "after", "dotted", "key"): 14,
        ("recall", "budgets"): 16,
        ("recall", "budgets", "rounds"): 17,
        ("upstream",): 19,
        ("upstream", 0): 19,
        ("upstream", 0, "name"): 20,
        ("upstream", 1): 21,
        ("upstream", 1, "name"): 22,
        ("upstream", 1, "extra"): 23,
        ("upstream", 1, "extra", "deep"): 24,
    }


def test_windows_line_ends_count_once() -> None:
    assert key_lines('a = 1\r\nb = "\\r"\r\n')[("b",)] == 2


def test_the_nearest_thing_around_a_key_has_a_line() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("server", "after", "dotted", "key", "inline")) == 14
    assert line_of(lines, ("upstream", 1, "missing")) == 21
    assert line_of(lines, ("nowhere",)) is None


KEYS = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
VALUES = st.sampled_from(
    [
        "1",
        "-2.5",
        "true",
        '"text = [#"',
        "'literal \\'",
        '"""\nk = 1\n[t]\n"""',
        "'''\nk = 1\n'''",
        '""""quoted"""""',
        '"\\""',
        "[1, # ]\n 2]",
        '{ a = "}", b = [1] }',
        "1979-05-27 07:32:00",
        '""',
    ]
)
TABLES = st.lists(
    st.tuples(KEYS, st.booleans(), st.dictionaries(KEYS, VALUES, max_size=4)),
    max_size=5,
    unique_by=lambda table: table[0],
)


@given(TABLES, st.sampled_from(["", "\n", "# [c] x = 1\n"]))
def test_lines_of_any_document(tables: list[tuple[str, bool, dict[str, str]]], gap: str) -> None:
    text = ""
    expected: dict[KeyPath, int] = {}
    for name, array, members in tables:
        text += gap
        path: KeyPath = (name, 0) if array else (name,)
        expected[(name,)] = expected[path] = text.count("\n") + 1
        text += f"[[{name}]]\n" if array else f"[{name}]\n"
        for key, value in members.items():
            expected[(*path, key)] = text.count("\n") + 1
            text += f"{key} = {value}\n"
    tomllib.loads(text)
    assert key_lines(text) == expected
