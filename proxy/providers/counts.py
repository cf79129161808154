"""Token counts of all dialects as the usage of Responses.

There, input includes what was cached, output includes reasoning, and the total is their sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.providers.base import Json


def usage(
    *, input_tokens: int, output_tokens: int, cached: int, reasoning: int, written: int = 0
) -> Json:
    """Return a complete usage.

    Args:
        input_tokens: All input, cached or not.
        output_tokens: All output, reasoning included.
        cached: Input that was read from a cache.
        reasoning: Output that was reasoning.
        written: Input that was written to a cache.
    """
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens,
    }


def of_chat(value: object) -> Json | None:
    """Return the usage of a chat completion; None where it gives no counts.

    Some count reasoning beside the completion tokens, and only their total tells: then it is
    added, since nothing else makes the total come out.
    """
    if not isinstance(value, dict):
        return None
    prompt, completion = _count(value, "prompt_tokens"), _count(value, "completion_tokens")
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    reasoning = _detail(value, "completion_tokens_details", "reasoning_tokens") or 0
    if _count(value, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning
    cached = _detail(value, "prompt_tokens_details", "cached_tokens")
    if cached is None:
        cached = _count(value, "prompt_cache_hit_tokens") or _count(value, "cached_tokens")
    return usage(
        input_tokens=prompt,
        output_tokens=completion,
        cached=cached or 0,
        reasoning=min(reasoning, completion),
        written=_detail(value, "prompt_tokens_details", "cache_write_tokens") or 0,
    )


def of_messages(value: Json) -> Json | None:
    """Return the usage of an Anthropic message, which counts input beside both caches."""
    fresh, output = _count(value, "input_tokens"), _count(value, "output_tokens")
    if fresh is None and output is None:
        return None
    cached = _count(value, "cache_read_input_tokens") or 0
    written = _count(value, "cache_creation_input_tokens") or 0
    return usage(
        input_tokens=(fresh or 0) + cached + written,
        output_tokens=output or 0,
        cached=cached,
        reasoning=_detail(value, "output_tokens_details", "thinking_tokens") or 0,
        written=written,
    )


def of_ollama(value: Json) -> Json | None:
    """Return the usage of Ollama's last line, which leaves out a prompt that was cached whole."""
    prompt, output = _count(value, "prompt_eval_count"), _count(value, "eval_count")
    if prompt is None and output is None:
        return None
    return usage(input_tokens=prompt or 0, output_tokens=output or 0, cached=0, reasoning=0)


def _count(value: Json, key: str) -> int | None:
    """Return a count; whole floats count too."""
    count = value.get(key)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    return count if type(count) is int and count >= 0 else None


def _detail(value: Json, key: str, name: str) -> int | None:
    details = value.get(key)
    return _count(details, name) if isinstance(details, dict) else None
