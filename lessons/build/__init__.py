"""Turn lessons (MyST text) into executed notebooks, reproducibly, byte for byte.

    python -m lessons.build              build what changed
    python -m lessons.build 01 02        build these chapters, changed or not
    python -m lessons.build --all        build every chapter
    python -m lessons.build --check      say what is out of step, run nothing
    python -m lessons.build --pages      write docs/course.md's lists and the teacher's pages, run nothing

A lesson is a folder, `lessons/NN_name/`; its notebook is `notebooks/NN_name.ipynb` and is never edited by hand.
`lesson_source` reads lessons, `placeholders` knows what stands for a placeholder, `chapter_notebook` makes the
notebook, `execution` runs it and compares it with the one that was saved, `course_page` lists the chapters in
docs/course.md, `teacher_pages` and `plan_page` write the teacher's pages and the plans into teaching/, and `__main__`
is the command.

The builder adds what a chapter should not have to repeat: the head of the page (from the lesson's header), the text
and the verdict of a claim (`{{claim D0.2}}` and `{{verdict D0.2}}`, from claims.toml), the tables of the reference
pages, and the cells of an exercise (`{{exercise q1}}`, from the exercises.md beside the lesson).
"""

import sys

# jsonschema would import this grammar of internationalised addresses, 0.8 s, and do without it if it is not there.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
