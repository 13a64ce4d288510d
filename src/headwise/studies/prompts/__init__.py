"""What do inserted tokens do to a model's answers and to a head's attention?"""

from headwise.studies.prompts.study import carry_out

__all__ = ["carry_out"]
