from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from proxy import cli
from proxy.cli import VERBS, command
from proxy.cli_output import CliError, byte_size, printable
from tests.proxy.commands import environment, run

if TYPE_CHECKING:
    from pathlib import Path

PRESENT = [name for name, verb in VERBS.items() if find_spec(verb.module)]

IMPORTED = """
import sys
from proxy.cli import command
try:
    command.main(sys.argv[1:], standalone_mode=False)
finally:
    heavy = {"pydantic", "starlette", "uvicorn", "httpx", "structlog", "orjson",
             "prometheus_client", "rich", "asyncio", "sqlite3", "hypothesis"}
    print("HEAVY", sorted(heavy & set(sys.modules)))
"""


def test_help_lists_every_verb_and_imports_none(tmp_path: Path) -> None:
    code, out, said = run(tmp_path, "--help")
    assert (code, said) == (0, "")
    for name, verb in VERBS.items():
        assert f"  {name}" in out
        assert verb.summary in out


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["config", "--help"]])
def test_help_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        env=environment(tmp_path),
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.endswith("HEAVY []\n")


@pytest.mark.parametrize("name", PRESENT)
def test_the_list_says_what_the_verb_says_of_itself(name: str) -> None:
    verb = import_module(VERBS[name].module).command
    assert isinstance(verb, click.Command)
    assert verb.name == name
    assert (verb.help or "").partition("\n")[0] == VERBS[name].summary


@pytest.mark.parametrize("name", PRESENT)
def test_every_verb_helps(name: str) -> None:
    result = CliRunner().invoke(command, [name, "--help"], prog_name="sottovoce")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: sottovoce {name}")


def test_the_version(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, "--version")
    assert code == 0
    assert out.startswith("sottovoce ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("serv", "error: No such command 'serv'. Did you mean 'serve'?"),
        ("serve --prt 1", "error: No such option '--prt'. Did you mean '--port'?"),
        ("serve --port x", "error: Invalid value for '--port': 'x' is not a valid integer range"),
    ],
)
def test_a_wrong_line_is_usage_with_a_hint(tmp_path: Path, arguments: str, error: str) -> None:
    code, out, said = run(tmp_path, *arguments.split())
    assert (code, out) == (2, "")
    lines = said.splitlines()
    assert lines[0] == error
    assert lines[1].startswith("hint: `sottovoce")


@pytest.mark.parametrize("arguments", [[], ["recall"], ["config"]])
def test_a_group_without_a_verb_helps(tmp_path: Path, arguments: list[str]) -> None:
    code, out, said = run(tmp_path, *arguments)
    assert (code, out) == (2, "")
    _, help_text, _ = run(tmp_path, *arguments, "--help")
    assert said == help_text
    assert said.startswith("Usage: ")
    assert len(said.splitlines()) > 5


def test_nobody_sees_a_traceback_of_a_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("serve")
    def broken() -> None:
        raise ZeroDivisionError("over sk-abcdefghijklmnop")

    monkeypatch.setattr("proxy.cli_serve.command", broken)
    assert cli.run(["serve"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: unexpected ZeroDivisionError: over [redacted]\nhint: ")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_is_no_error(
    stop: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("serve")
    def stopped() -> None:
        raise stop

    monkeypatch.setattr("proxy.cli_serve.command", stopped)
    assert cli.run(["serve"]) == 130
    assert capsys.readouterr().err.strip() == "aborted"


def test_all_failures_of_one_error_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("serve")
    def failing() -> None:
        raise CliError("one", hint="do this", more=[("two", None)])

    monkeypatch.setattr("proxy.cli_serve.command", failing)
    assert cli.run(["serve"]) == 1
    assert capsys.readouterr().err == "error: one\nhint: do this\nerror: two\n"


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "proxy.cli", "config", "init", "--print"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_an_output_that_knows_few_letters_is_no_error(tmp_path: Path) -> None:
    more = {"PYTHONIOENCODING": "ascii"}
    code, _, said = run(tmp_path, "config", "init", "--print", more=more)
    assert (code, said) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_us_back(tmp_path: Path, shell: str) -> None:
    code, out, said = run(tmp_path, "completion", shell)
    assert (code, said) == (0, "")
    assert "_SOTTOVOCE_COMPLETE" in out


def test_completion_knows_verbs_and_options(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli"],
        env=environment(
            tmp_path,
            {
                "_SOTTOVOCE_COMPLETE": "bash_complete",
                "COMP_WORDS": "sottovoce serve --st",
                "COMP_CWORD": "2",
            },
        ),
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.stdout == "plain,--state-dir\n"


def test_an_unknown_shell_is_usage(tmp_path: Path) -> None:
    assert run(tmp_path, "completion", "tcsh")[0] == 2


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (1_234_567, "1.2 MB"), (5 * 10**12, "5000 GB")],
)
def test_sizes_for_people(size: int, shown: str) -> None:
    assert byte_size(size) == shown


def test_stored_text_can_not_move_a_cursor() -> None:
    assert printable("a\tb\nc\x1b[2J\x9b\r") == "a\tb\nc\\x1b[2J\\x9b\\x0d"
