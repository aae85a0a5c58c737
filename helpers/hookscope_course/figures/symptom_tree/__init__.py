"""The symptom tree: click what you see, answer one to three questions, and find what it was and how to mend it."""
