"""What JupyterHub reads: all of it stands in `configuring`, from the settings in the environment."""

import os

from hub.configuring import configure
from hub.settings import Settings

configure(get_config(), Settings.of(os.environ))  # type: ignore[name-defined]  # noqa: F821  # JupyterHub gives it
