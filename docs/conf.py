"""Sphinx's settings for the documentation. `make docs` builds it."""

import sys
from pathlib import Path

import covey

ROOT = Path(__file__).parents[1]
# The extension lies beside this file, and names of methods in results pages come from `papers`.
sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(ROOT)]

project = "Covey"
author = "The Covey authors"
version = release = covey.__version__

extensions = ["myst_parser", "site_pages"]
# A notebook becomes a Markdown page before it is parsed.
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
exclude_patterns = ["_ext", "_build"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "Covey"
html_static_path = ["_static"]
html_css_files = ["covey.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_show_search_summary = False  # Summaries are fetched, which browsers refuse for files.
highlight_language = "text"
pygments_style = "default"
pygments_dark_style = "monokai"
