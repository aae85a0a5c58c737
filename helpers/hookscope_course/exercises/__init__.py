"""What a right answer to an exercise is, chapter by chapter, and what to say to a wrong one."""

from lessons.checks.blank import ____
from lessons.checks.exercise import Exercise, Feedback, Wrong
from lessons.checks.guess import Guess
from lessons.checks.setup import setup

__all__ = ["Exercise", "Feedback", "Guess", "Wrong", "____", "setup"]
