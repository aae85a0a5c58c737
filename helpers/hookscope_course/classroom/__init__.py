"""The course in a classroom: a chapter for the projector, slides without a kernel, handouts.

    python -m hookscope_course class 02      # make class CHAPTER=02, hookscope class 02
    python -m hookscope_course slides 02
    python -m hookscope_course handout 02 04 --to monday.zip

Everything is made from the built notebooks: `slide_order` cuts a chapter into slides, `projector` opens it, `slides`
writes one page of HTML, `handout` packs what learners get.
"""
