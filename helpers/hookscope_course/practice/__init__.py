"""Ask questions, check answers and explain the mistakes in them, give hints, show solutions."""

from hookscope_course.practice.blank import ____
from hookscope_course.practice.chapter_exercises import exercises
from hookscope_course.practice.check_options import allows, blind_to
from hookscope_course.practice.exercise import Exercise, Wrong
from hookscope_course.practice.exercise_parser import ExerciseText, ExerciseTextError, read_exercises
from hookscope_course.practice.feedback_card import Card, Feedback
from hookscope_course.practice.guess import Guess

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
