"""Chat clients: their requests as Responses requests, their turns' answers as chat completions.

::

    request.py    a chat request, understood: the Responses request that asks the same
    messages.py   its messages as input items
    chunks.py     the chunks of a streamed answer, written one after the other
    render.py     the client's side of a turn: as a stream of chunks, or as one completion

Pure: values and bytes in, values and bytes out. ``proxy.completions`` is the endpoint.
"""
