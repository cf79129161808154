"""What is watched, and how it is kept from ever disturbing a turn.

``capture``
    The door that never throws and never blocks; the records that go through it.
``logs``
    Structured logs, redacted, rendered and written away from the read path.
``metrics``
    Every metric's name, over bounded labels.
``redact``
    One place that takes secrets out, by their form.
``known``
    The secrets of the configuration, wherever a provider repeats them.
"""
