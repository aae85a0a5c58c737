"""Hold our values for Zero to JupyterHub against the chart's own schema and defaults, which are too large to keep here.

python -m tests.deploy.chart values.schema.yaml values.yaml      # both from the chart's repository, jupyterhub/
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

VALUES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "values.yaml"


def over(defaults: Any, ours: Any) -> Any:
    """Lay our values over the chart's, as helm does."""
    if not isinstance(defaults, dict) or not isinstance(ours, dict):
        return ours
    return defaults | {key: over(defaults.get(key), value) for key, value in ours.items()}


def problems(schema: Any, defaults: Any, ours: Any) -> list[str]:
    """What the schema has against our values."""
    errors = Draft7Validator(schema).iter_errors(over(defaults, ours))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def main(words: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    if len(words) != 2:
        sys.exit("usage: python -m tests.deploy.chart values.schema.yaml values.yaml")
    schema, defaults = (yaml.safe_load(Path(word).read_text(encoding="utf-8")) for word in words)
    found = problems(schema, defaults, yaml.safe_load(VALUES.read_text(encoding="utf-8")))
    print("\n".join(found) or "The chart's schema has nothing against our values.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
