"""Ask, check an answer and say in words what it did, give hints, show the solution."""

from hookscope_course.exercises.blank import ____
from hookscope_course.exercises.card import Card, Feedback
from hookscope_course.exercises.chapter import exercises
from hookscope_course.exercises.declared import allows, blind_to
from hookscope_course.exercises.exercise import Exercise, Wrong
from hookscope_course.exercises.guess import Guess
from hookscope_course.exercises.text import ExerciseText, ExerciseTextError, read_exercises

__all__ = [
    "Card",
    "Exercise",
    "ExerciseText",
    "ExerciseTextError",
    "Feedback",
    "Guess",
    "Wrong",
    "____",
    "allows",
    "blind_to",
    "exercises",
    "read_exercises",
]
