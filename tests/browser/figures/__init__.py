"""Figures on a bare page of a real browser: what each of them promises, and what is special to one."""
