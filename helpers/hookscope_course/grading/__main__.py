"""Write assignments and grade them: `python -m hookscope_course.grading --help`."""

import sys

from hookscope_course.grading.assignments import main

sys.exit(main())
