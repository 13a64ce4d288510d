"""Which heads serve which ability?"""

from headwise.studies.functions.study import carry_out

__all__ = ["carry_out"]
