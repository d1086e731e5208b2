"""`python -m covey`."""

import sys

if not sys.flags.safe_path:
    # Python puts the current folder first, where files of a folder of results would be imported as modules.
    del sys.path[0]

from covey.cli.main import main

main()
