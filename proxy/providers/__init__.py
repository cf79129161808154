"""Providers: translators between the Responses API and what an upstream speaks.

::

    kinds.py         which provider a kind is, its default URL, its credential
    base.py          the protocol: a request out, a reader in; what a request offered in vain
    responses.py     Responses, as it came        codex.py  the same, always streamed

    conversation.py  a Responses request, understood: system text, turns, choice
    parts.py         contents of messages and of tool results
    tools.py         tools of every layout as plain functions, and their names mapped back
    replay.py        what a dialect needs to see again of its reasoning, inside of the item
    writer.py        the events of a response, written one after the other
    items.py         those of one item
    inputs.py        the text of a custom tool, out of arguments that are still coming
    reading.py       SSE, JSON lines or JSON, taken apart for a translator
    codes.py         errors of all dialects in the codes of Responses
    counts.py        token counts of all dialects as usage

    chat.py, anthropic.py, ollama.py              one dialect each, made of
    *_request.py  Responses request → its request       *_stream.py  its answer → events

Pure: bytes and values in, bytes and values out. Only ``proxy.upstream`` sends.
"""
