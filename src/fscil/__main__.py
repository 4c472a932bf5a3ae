"""`python -m fscil` is the command line, for launchers such as torchrun that start a module."""

from fscil.cli import main

main()
