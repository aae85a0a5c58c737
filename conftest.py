"""What all test paths share, `tests` and `notebooks`: how a notebook is checked."""

pytest_plugins = ["tests.shared.notebook_checks"]
