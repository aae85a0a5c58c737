"""The fact check as a widget: what five documents claim about hooks, the verdicts, and what torch does."""
