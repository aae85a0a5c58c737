"""The lessons: chapters as text, the checks of the exercises, and the builder that turns them into notebooks."""
