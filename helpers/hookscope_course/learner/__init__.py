"""A learner's own copy of the course: made without outputs and solutions, kept up to date, never overwritten.

    python -m hookscope_course.learner              # make course/, or bring it up to date
    python -m hookscope_course.learner reset 03     # begin chapter 03 again; what you wrote is kept as a dated copy
    python -m hookscope_course.learner progress     # which exercises are done, and what is next

Nothing here imports torch: it runs before every `make lab`.
"""
