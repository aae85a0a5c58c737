"""Cover a digit with the smallest square that makes a model read another one."""
