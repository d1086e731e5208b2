"""Pages of reports, which are made for what runs hold at a moment: the last ones are kept."""

from covey.serve.job_queue import JobQueue

KEPT = 20
"""Pages of reports that are kept."""


def drop_old_pages(queue: JobQueue) -> None:
    """Remove the pages of all but the last reports; one that is asked for again is made anew."""
    # Analyses have pages too, and people find them in the list of jobs.
    listed = {job.id for job in queue.all()}
    pages = [page for page in (queue.folder.own / "jobs").glob("*/page.html") if page.parent.name not in listed]
    for page in sorted(pages, key=lambda page: page.stat().st_mtime)[:-KEPT]:
        page.unlink(missing_ok=True)
