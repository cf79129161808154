"""HTTP in, HTTP out: the only package that does network I/O, and where the others meet."""
