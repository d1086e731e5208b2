"""`covey serve`: a page about the runs of a folder, a queue of jobs, and models on demand over HTTP.

    access.py            who may ask: hosts, tokens, cross-site requests, sizes of requests
    served_folder.py     paths of a request as places in the folder, never outside
    job_request.py       a request as canonical JSON, its identity, and its command line
    model_order.py       the base run, the fleet and the class mix of an order for a model
    job_queue.py         jobs on disk; they survive the server
    spawner.py           the process that jobs are forked from
    round_stream.py      rounds as events, read from the folders of runs
    api_routes.py        JSON for programs (`covey.Client` in service_client.py)
    page_routes.py       pages for people; `*_view.py` draws them
    web_app.py           all of it as one application, and the server

Whoever asks sends data alone: a request that names code is refused, and folders are read without trust.
"""
