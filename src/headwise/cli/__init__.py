"""The command line: every command hands over to the room that knows.

Begin with `app.py` (exit codes, what is said when something goes wrong); `root.py` has the options that commands
share, `run.py` how a study is started and resumed, `short.py` its short forms, `look.py` model, task and head,
`runs.py` finished runs, `serve.py` explorer and tools. May import everything.
"""
