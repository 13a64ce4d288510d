"""The live explorer: a page in the browser on which heads are switched off while the model writes.

Begin with `explorer.py` (`hw.explore`, what the page starts with). A request goes through `guard.py` (token, Host,
Origin), `server.py` (uvicorn, routes), `requests.py` (checked requests) and `worker.py` (one thread owns the model) to
what computes it: `live.py` (next token and continuation under gates), `opened_head.py` (one head on this prompt),
`significance.py` ("is this real?" on held-out examples). `prompt_cache.py` has what the next click needs again,
`run_data.py` reads a run folder, and `assets/` is the page: plain ES modules. The folder is not called `explore`: that
is the name of the function. May import: everything below cli.
"""
