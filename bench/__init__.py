"""What a turn costs: our own provider and load client, targets side by side in one run.

``python -m bench`` (``__main__``) measures all of it; each part yields records:

- ``runs``: streams through direct, nginx, ``baseline`` (the plain pass-through) and this project;
  ``targets`` starts them, ``client`` drives one run, ``meter`` reads CPU and memory from outside.
- ``requests``, ``growth``: work of the pipeline alone, in this process, by ``replay``.
- ``memory``, ``processes``, ``footprint``: hidden calls, a second process, start and size.

``stream`` makes what is said, ``script`` the provider's answers of it, ``native`` compiles provider
and client (``native/*.c``). ``report`` and ``plot`` show records, ``compare`` two files of them,
``count`` counts instructions.
"""
