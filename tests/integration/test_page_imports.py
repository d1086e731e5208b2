"""Importing pages starts no plotting library."""

import subprocess
import sys


def test_nothing_imports_plotly_before_a_page_is_written():
    code = "import covey.page.run_report, covey.job.federation_summary, sys; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
