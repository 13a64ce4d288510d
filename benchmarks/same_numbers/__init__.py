"""The same numbers before and after a change of the code: an old commit and this tree, job by job.

    make same OLD=81069de      or: PYTHONPATH=benchmarks python -m same_numbers --old 81069de
    make same-faults           or: PYTHONPATH=benchmarks python -m same_numbers.faults

Only the public Python names and the command line are used, so that the code behind them may move. Begin reading in
`__main__`. `files` writes the models and examples that both checkouts read; `catalogue` enumerates the jobs of a
checkout; `worker` runs them; `arrays` is the form in which results are stored; `compare` reads two folders of results;
`accepted.yaml` declares differences that are meant; `faults` shows that the comparison can fail.
"""
