"""One turn as pure state machines over events: no I/O, no clock, no randomness."""
