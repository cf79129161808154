"""Token counts and errors of all dialects in the words of Responses."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.usage import is_complete_usage
from proxy.providers import counts
from proxy.providers.codes import code_of, error_body
from tests.dialects import usage

Counts = dict[str, Any]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 99}, usage(5, 2)),
        ({"prompt_tokens": 5.0, "completion_tokens": None}, usage(5, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 3}, usage(5, 2, cached=3)),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 4}, usage(5, 0, cached=4)),
        (
            {
                "prompt_tokens": 307,
                "completion_tokens": 26,
                "total_tokens": 560,
                "completion_tokens_details": {"reasoning_tokens": 227},
            },
            usage(307, 253, reasoning_tokens=227),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 9,
                "total_tokens": 14,
                "completion_tokens_details": {"reasoning_tokens": 4},
                "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
            },
            usage(5, 9, cached=1, reasoning_tokens=4, written=2),
        ),
        ({"prompt_tokens_details": None, "prompt_tokens": 1}, usage(1, 0)),
        ({}, None),
        ({"prompt_tokens": -1, "completion_tokens": "2"}, None),
        (None, None),
    ],
)
def test_of_chat(told: object, expected: Counts | None) -> None:
    assert counts.of_chat(told) == expected
    assert is_complete_usage(counts.of_chat(told))


def test_of_messages() -> None:
    told = {"input_tokens": 1, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 3}
    assert counts.of_messages(told | {"output_tokens": 4}) == usage(6, 4, cached=2, written=3)
    assert counts.of_messages({"output_tokens": 4}) == usage(0, 4)
    assert counts.of_messages({}) is None


def test_of_ollama() -> None:
    assert counts.of_ollama({"prompt_eval_count": 1, "eval_count": 2}) == usage(1, 2)
    assert counts.of_ollama({"eval_count": 2}) == usage(0, 2)
    assert counts.of_ollama({}) is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, "rate_limit_exceeded"),
        ({"error": {"message": "m", "code": 429}}, "rate_limit_exceeded"),
        ({"error": {"message": "m", "code": "503"}}, "server_is_overloaded"),
        ({"error": {"message": "m", "code": None, "type": "Overloaded_Error"}}, None),
        ({"error": {"message": "m", "type": "tokens"}}, "rate_limit_exceeded"),
        ({"error": {"message": "context is full", "type": "invalid_request_error"}}, "overflow"),
        ({"error": {"message": "bad role", "type": "invalid_request_error"}}, "invalid_prompt"),
        ({"error": {"message": "max_tokens: 9 is the maximum", "code": 400}}, "invalid_prompt"),
        ({"error": {"message": "m", "code": "insufficient_quota"}}, "insufficient_quota"),
        ({"error": {"message": "m", "code": 402}}, "insufficient_quota"),
        ({"error": {"message": "m", "code": "weird"}}, "weird"),
        ({"error": "prompt is too long"}, "overflow"),
        ({"error": "gone"}, "server_error"),
        ({"error": {}}, "server_error"),
        (None, "server_error"),
    ],
)
def test_codes(value: object, code: str | None) -> None:
    expected = {"overflow": "context_length_exceeded", None: "server_is_overloaded"}
    message, told = code_of(value)
    assert message
    assert told == expected.get(code, code)


def test_error_bodies_have_one_shape() -> None:
    given = {
        "type": "error",
        "error": {"type": "not_found_error", "message": "no sk-x" + "x" * 999},
    }
    [(key, error)] = error_body(given, redact=lambda text: text.replace("sk-x", "?")).items()
    assert key == "error"
    assert error["message"].startswith("no ?")
    assert len(error["message"]) == 500
    assert (error["type"], error["code"]) == ("not_found_error", "not_found_error")
    plain = error_body({"error": "model 'x' not found"}, redact=str)["error"]
    assert plain == {
        "message": "model 'x' not found",
        "type": "upstream_error",
        "code": "server_error",
        "param": None,
    }
    assert error_body(None, redact=str)["error"]["message"] == "the provider gave no message"
