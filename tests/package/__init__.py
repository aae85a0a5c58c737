"""The package: a folder of tests for each room of hookscope, under the name of the room."""
