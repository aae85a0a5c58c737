"""Run notebooks from top to bottom, and save them with their outputs."""

import sys

from hookscope_course.strict.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
