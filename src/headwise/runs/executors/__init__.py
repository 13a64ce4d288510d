"""What computes steps in other processes: `ray_executor.py`. In this process `runs/compute.py` does, which asks
only for those that are not stored yet: this is how a killed run resumes.

May import: errors, files, progress, the rest of `runs`.
"""
