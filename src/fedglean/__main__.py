"""The command `fedglean`, which is also `python -m fedglean`."""

import os
import signal
import sys

from fedglean.version import __version__


def main() -> None:
    """Run the command line. To be terminated is to be interrupted: both end in a sentence."""
    if sys.argv[1:] == ["--version"]:
        print(f"fedglean {__version__}")
        return
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:  # a shell ignores it for what runs in background
        signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    from fedglean.cli import app  # seconds, in which an exception could surface anywhere

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _leave(number: int, frame: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
