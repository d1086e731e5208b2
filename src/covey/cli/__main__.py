"""`python -m covey.cli`."""

from covey.cli.main import main

main()
