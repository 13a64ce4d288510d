"""Does a head help, hinder, or do nothing?"""

from headwise.studies.roles.study import carry_out

__all__ = ["carry_out"]
