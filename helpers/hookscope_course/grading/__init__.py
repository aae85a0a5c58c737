"""Exercises as nbgrader assignments, and grading what is handed in: each answer in a sandbox of bubblewrap.

    python -m hookscope_course.grading write 02 04 --to FOLDER    # make nbgrader CHAPTERS="02 04" DEST=FOLDER
    python -m hookscope_course.grading grade FOLDER               # make grade DEST=FOLDER

Nothing else imports it, and the wheel leaves it out: teachers grade from a checkout.
"""
