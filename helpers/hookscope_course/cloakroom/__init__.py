"""A second small language model, for chapter 21: it reads the list of a cloakroom, and a name, and says the thing."""

from hookscope_course.cloakroom.model import CLOAKROOM_WEIGHTS, Lists, cloakroom_lists, cloakroom_lm, things_of

__all__ = ["CLOAKROOM_WEIGHTS", "Lists", "cloakroom_lists", "cloakroom_lm", "things_of"]
