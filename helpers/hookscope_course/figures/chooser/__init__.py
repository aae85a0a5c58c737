"""The chooser as a widget: type what you want to do, and get a sentence and the lines to paste."""
