"""`python -m covey`."""

from covey.cli.main import main

main()
