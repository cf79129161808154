"""When a completion was empty: the client got no text, no call and no reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.outcome import is_empty_completion
from tests.builders import custom_call, function_call, message, reasoning, refusal

if TYPE_CHECKING:
    from tests.builders import Item


@pytest.mark.parametrize(
    "output",
    [
        [],
        [message("")],
        [message("") | {"content": []}],
        [message("") | {"content": None}],
        [message("") | {"content": [None, {"type": "output_text"}]}],
        [reasoning("")],
        [{"type": "reasoning"}],
        [message(""), reasoning("")],
    ],
)
def test_empty(output: list[Item]) -> None:
    assert is_empty_completion(output)


@pytest.mark.parametrize(
    "item",
    [
        message("hi"),
        message(" "),
        refusal("no"),
        reasoning("why"),
        reasoning("", encrypted="gAAAA"),
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]},
        function_call("c", "shell", "{}"),
        custom_call("c", "patch", ""),
        {"type": "image_generation_call"},
        {"type": "brand_new"},
    ],
)
def test_not_empty(item: Item) -> None:
    assert not is_empty_completion([item])
    assert not is_empty_completion([message(""), item])
