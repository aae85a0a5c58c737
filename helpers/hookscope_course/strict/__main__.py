"""Run notebooks from top to bottom and save them with what came out."""

import sys

from hookscope_course.strict.runner import main

sys.exit(main(sys.argv[1:]))
