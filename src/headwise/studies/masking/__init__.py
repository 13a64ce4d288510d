"""Does the model fail when the important heads go, and not when random ones go?"""

from headwise.studies.masking.study import carry_out

__all__ = ["carry_out"]
