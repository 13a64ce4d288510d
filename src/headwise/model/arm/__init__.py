"""ARM, the activation redistribution of the study `prompts` (arXiv 2510.01032): `arm.py`.

May import: errors, `model.sites`.
"""
