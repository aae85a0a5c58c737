"""How long a test waits for something that has to come, before it says that it does not."""

# Seconds. A test that passes does not wait; a busy machine may be ten times as slow as an idle one.
PATIENCE = 600
