"""Covey's own method against the four papers' and their rivals, on the papers' own settings."""

from papers.grid import Paper
from papers.own.lines import groups
from papers.own.page import make_page
from papers.own.scales import NAMES, SCALES

PAPER = Paper(
    name="own",
    title="covey, Covey's own method, against all others on the four papers' settings",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    make_page=make_page,
)
