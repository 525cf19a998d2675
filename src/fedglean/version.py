"""The version, in a file so that it is also known where the package was not installed."""

__version__ = "0.2.0.dev0"
