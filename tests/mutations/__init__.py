"""Places to break on purpose: it says whether a suite that became smaller has lost something."""
