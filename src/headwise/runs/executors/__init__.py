"""What computes cells. `resume.py` computes those that are not finished yet and writes the tables: this is how a killed
run resumes. `ray_executor.py` computes them in many processes.

May import: errors, files, progress, the rest of `runs`.
"""
