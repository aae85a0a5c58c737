"""The promises that all tools make: one matrix of tools, awkward models and promises.

- The models are the rows of `MODELS` in `tests/shared/awkward_models`; the name of each says what is awkward in it.
- The tools are the rows of `BLOCKS` and `RUNS` in `tools.py`.
- The promises are the tests: values are those of that moment (`test_values.py`), results of the model are unchanged
  (`test_results.py`), hooks come off (`test_hooks_off.py`), and what was not done is said (`test_refused.py`).

A new tool, model or promise is one row more. What is special to one tool is tested in the folder of its room.
"""
