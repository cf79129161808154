"""What a streamed turn costs: our own provider and load client, targets side by side.

``stream`` makes the bytes, ``provider`` serves them, ``load`` drives a target and counts, ``meter``
reads CPU and memory of a process tree, ``baseline`` is the plain pass-through to compare with,
``report`` prints. ``python -m bench --help`` says how to run it.
"""
