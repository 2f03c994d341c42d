"""`python -m antiphon`: the same as `antiphon`."""

from antiphon.cli.main import main

main()
