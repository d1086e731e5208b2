"""Without Flower, the import says what to install."""

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["flwr"] = None
import covey.flower
"""


def test_the_import_says_which_extra_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "covey.flower needs Flower: pip install '.[flower]' in Covey's checkout."
