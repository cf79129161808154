"""The version of this program, in one place for all that tells it."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("sottovoce")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0+unknown"
