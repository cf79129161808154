from __future__ import annotations

import errno
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from proxy.cli_output import CliError
from proxy.cli_serve import listen, make_state_dir
from proxy.cli_server import banner, notice_seconds
from proxy.config import load_config
from tests.proxy.commands import Serving, eventually, free_port, run, until

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE = {"SOTTOVOCE_SERVER__DRAIN_NOTICE_SECONDS": "0"}


def test_the_banner_says_what_one_needs_in_six_lines(tmp_path: Path) -> None:
    config = load_config(environ={}, flags={("server", "state_dir"): str(tmp_path)})
    text = banner(config, 7688)
    lines = text.splitlines()
    assert len(lines) <= 6
    assert "http://127.0.0.1:7688/v1" in lines[0]
    assert "https://api.openai.com/v1" in text
    assert f"{tmp_path / 'memory.db'} (0 B)" in text
    config.memory_file.write_bytes(b"x" * 1_000_000)
    (tmp_path / "memory.db-wal").write_bytes(b"x" * 234_567)
    assert "(1.2 MB)" in banner(config, 7688)


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "http://[::1]:1/v1"), ("localhost", "http://localhost:1/v1")]
)
def test_the_banner_shows_an_address_that_can_be_used(host: str, shown: str) -> None:
    assert shown in banner(load_config(environ={}, flags={("server", "host"): host}), 1)


def test_on_a_terminal_a_stop_waits_for_nobody_to_notice() -> None:
    config = load_config(environ={})
    assert notice_seconds(config, on_terminal=False) == 5
    assert notice_seconds(config, on_terminal=True) == 0
    config = load_config(environ={"SOTTOVOCE_SERVER__DRAIN_NOTICE_SECONDS": "3"})
    assert notice_seconds(config, on_terminal=True) == 3


def test_a_stop_is_announced_while_still_accepting(tmp_path: Path) -> None:
    with Serving(tmp_path, more={"SOTTOVOCE_SERVER__DRAIN_NOTICE_SECONDS": "600"}) as serving:
        assert serving.status("/readyz") == 200
        serving.signal(signal.SIGTERM)
        eventually(lambda: serving.status("/readyz") == 503)
        serving.signal(signal.SIGINT)
        assert serving.ended() == 0


def test_open_turns_end_after_accepting_has_stopped(tmp_path: Path) -> None:
    with Serving(tmp_path, more=AT_ONCE) as serving, serving.request("/hold", length=1) as turn:
        until(turn, b"begun ")
        serving.signal(signal.SIGTERM)
        eventually(lambda: serving.status("/readyz") is None)
        turn.sendall(b"x")
        until(turn, b"ended")
        assert serving.ended() == 0
        assert "Traceback" not in serving.said


def test_what_is_still_open_is_told_to_end_before_the_last(tmp_path: Path) -> None:
    more = {**AT_ONCE, "SOTTOVOCE_SERVER__DRAIN_SECONDS": "3"}
    with Serving(tmp_path, more=more) as serving, serving.request("/slow") as turn:
        until(turn, b"begun ")
        serving.signal(signal.SIGTERM)
        until(turn, b"ended")
        assert serving.ended() == 0
        assert "Traceback" not in serving.said


def test_control_c_ends_it_without_a_word_of_python(tmp_path: Path) -> None:
    with Serving(tmp_path, more=AT_ONCE) as serving:
        assert len(serving.said.splitlines()) <= 6
        serving.signal(signal.SIGINT)
        assert serving.ended() == 0
        assert "Traceback" not in serving.said


def test_an_end_that_is_not_clean_is_told(tmp_path: Path) -> None:
    with Serving(tmp_path, more={**AT_ONCE, "TINY_ENDS_BADLY": "disk full"}) as serving:
        serving.signal(signal.SIGTERM)
        assert serving.ended() == 1
        assert serving.said.endswith("error: the proxy did not end cleanly: disk full\n")


@pytest.mark.parametrize("variable", ["TINY_FAILS", "TINY_REFUSES"])
def test_an_app_that_does_not_start_is_one_error(tmp_path: Path, variable: str) -> None:
    code, out, said = run(
        tmp_path, "serve", "--port", "0", more={variable: "memory is newer"}, tiny=True
    )
    assert (code, out) == (1, "")
    assert said == "error: the proxy can't start: memory is newer\n"


def test_a_taken_port_is_one_error_with_the_next_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, said = run(tmp_path, "serve", "--port", str(port), tiny=True)
    assert code == 1
    error, hint = said.splitlines()
    assert error == f"error: port {port} is taken"
    assert hint.startswith("hint: the next free one is ")
    assert int(hint.rpartition(" ")[2]) > port


def test_a_port_is_ours_as_soon_as_it_is_bound() -> None:
    with listen("127.0.0.1", 0) as ours:
        port = ours.getsockname()[1]
        with pytest.raises(CliError, match=f"port {port} is taken"):
            listen("127.0.0.1", port)
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_is_shared_among_those_that_all_ask_for_it() -> None:
    with listen("127.0.0.1", 0, shared=True) as one:
        port = one.getsockname()[1]
        with listen("127.0.0.1", port, shared=True) as other:
            assert other.getsockname() == one.getsockname()
        with pytest.raises(CliError, match=f"port {port} is taken"):
            listen("127.0.0.1", port)


def test_an_unshared_port_is_not_shared_later() -> None:
    with listen("127.0.0.1", 0) as ours:
        port = ours.getsockname()[1]
        with pytest.raises(CliError, match=f"port {port} is taken"):
            listen("127.0.0.1", port, shared=True)


def test_every_way_to_be_refused_an_address_has_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, words in (
        (errno.EACCES, "takes more rights"),
        (errno.EADDRNOTAVAIL, "no interface of this machine"),
        (errno.ENOBUFS, "can't be listened on"),
    ):

        def refuse(_self: socket.socket, _address: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "bind", refuse)
            with pytest.raises(CliError, match=words):
                listen("127.0.0.1", 80)
    with pytest.raises(CliError, match="has no address"):
        listen("no.such.host.invalid", 80)


def test_a_state_directory_that_can_not_be_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="can't be made"):
        make_state_dir(tmp_path / "file" / "state")
    make_state_dir(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_beyond_loopback_it_takes_a_token(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0", tiny=True)
    assert code == 1
    assert said.startswith("error: --host: listening on 0.0.0.0, beyond loopback, needs an access")
    assert "\nhint: " in said


def test_an_upstream_that_is_ourselves_is_refused(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://localhost:{port}/v1"
    code, _, said = run(tmp_path, "serve", "--port", str(port), "--upstream", url, tiny=True)
    assert code == 1
    assert "is this proxy's own address" in said
    assert "\nhint: " in said


def test_a_kind_needs_an_upstream(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, "serve", "--kind", "codex", tiny=True)
    assert code == 2
    assert said.startswith("error: --kind says what --upstream is")
