"""The command line: one file per command, which hands over to the room that knows.

Begin with `app.py` (exit codes, what is said when something goes wrong); `root.py` has the options that commands
share, `running.py` how a study is started and resumed. May import everything.
"""
