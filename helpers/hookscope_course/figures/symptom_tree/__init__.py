"""The symptom tree: click a symptom, answer one to three questions, and find the cause and the fix."""
