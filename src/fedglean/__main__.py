"""`python -m fedglean` is the command `fedglean`."""

from fedglean.cli import main

main()
