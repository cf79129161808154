"""Chat clients: their requests as Responses requests, their turns' answers as chat completions.

::

    request.py    a chat request, understood: the Responses request that asks the same
    messages.py   its messages as input items
    render.py     the client's side of a turn: as a stream of chunks, or as one completion
    completion.py what a response says, in the members of a completion
    native.py     the client's own request, put to an upstream that speaks chat itself
    observe.py    what a completion says that passes as it came

Pure: values and bytes in, values and bytes out. ``proxy.completions`` is the endpoint,
``proxy.passing`` what passes.
"""
