"""What the cells of the lessons import beside `hookscope`: exercises, guesses, the blank, a look at the set-up.

    from hookscope_course import Guess, ____, exercises

    q1, q2, q3 = exercises(2)      # those of chapter 02

`exercises` reads and checks answers, `history` knows how hooks behaved in every release of torch, `ranks` runs a
function in several processes, `lessons` is the folder of the chapters.
"""

from hookscope_course.exercises import Exercise, Feedback, Guess, Wrong, ____, exercises
from hookscope_course.ready import setup

__all__ = ["Exercise", "Feedback", "Guess", "Wrong", "____", "exercises", "setup"]
