"""What computes cells: `execute.py` in this process, `ray_executor.py` in many. A killed run resumes in `execute.py`.

May import: errors, files, progress, the rest of `runs`.
"""
