"""A double of SGLang's launch_server for tests: HTTP, processes, log lines and the probes' files. Not SGLang.

It needs no torch and starts at once, so that the roads around a server can be driven many times and all steps of a plan
for a GPU host rehearsed on two cores. What it answers is made up: a draft is accepted as often as its folder's name
says, and the states that reach it are the reference's or noise.

`tests/faults` packs it as a wheel of `sglang`. `tests/gpu/doubles/place.py` puts it in the place of the module that
`python -m sglang.launch_server` names, inside a real release's environment.

What it does, and does wrong, it reads from /srv/double/commands.json, at its start and at each request:

    {"only": "production" | "debug" | "baseline",   which mode the rest is about; every one without it
     "pid": 4711,                       which process alone it is about
     "pace": 1,                         how slow loads and answers are, with 1 about as on a card; at once without it
     "at_load": "crash" | "hang",       rc 1 with a traceback; never listens
     "at_graphs": "crash",              rc 1 in the middle of a graph capture's log lines (simulated: no GPU, no graphs)
     "after_ready": 1.5,                SIGKILL to itself so many seconds after it began to answer
     "health": 503, "health_s": 1,      what /health answers, and after how many seconds
     "generate": "garbage" | "empty" | "hang" | 500,
     "accept": 0,                       drafts accepted per verify, 0 to 3
     "drain": 5, "deaf": true}          seconds that a request in flight takes to drain; ignores SIGTERM
"""
