"""The hidden tool and the memory behind it.

==============  ==================================================================================
tool            What the model is told, how its arguments are read, what a call comes to.
search          ``run_recall``: one hidden call; ``find``: a page of hits in SQL.
plan, rank      Pure: what of a query is scored, and in which order the hits come.
terms, dates    Pure: the words under which text and days are indexed and looked for.
render, text    Pure: hits as marked data; cleaning, cutting.
ingest          ``ingest_turns``: what turns add to the memory.
ingests         Turns on their way there: those that end close together are written together.
ledger          What turns leave for later requests: hidden groups, response ids.
glance          Which keys the ledger has at all, known without asking it.
joins           The same on their way into the memory: found at once, written until durable.
store           A memory as one thing: opened, listed, checked, forgotten, closed.
database        Connections, threads, interrupts; one writer, several readers.
entries         What is stored, as functions on a connection; ``records`` for the ledger's rows.
migrations      The file's shape, m001 and on.
==============  ==================================================================================

A call goes ``search`` → ``database`` → ``plan`` → SQL → ``rank`` → ``render``.
"""
