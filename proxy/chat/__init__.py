"""Chat clients: their requests as Responses requests, their turns' answers as chat completions.

::

    request.py    a chat request, understood: the Responses request that asks the same
    messages.py   its messages as input items
    render.py     the client's side of a turn: as a stream of chunks, or as one completion
    completion.py what a response says, in the members of a completion

    native.py     the client's own request, put to an upstream that speaks chat itself
    merge.py      items that a turn adds, among the client's messages
    reading.py    what such an upstream answers: events for the turn, and beside them what came
    splicing.py   what of it the client gets
    joint.py      the hops of a turn as one completion: what is cut, numbered, summed
    discreet.py   what else of a chunk tells of a hidden tool
    jsonedit.py   members changed one by one, the rest as it was written

Pure: values and bytes in, values and bytes out. ``proxy.completions`` is the endpoint.
"""
