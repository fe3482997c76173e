"""The example to copy: `--module example` in the folder above this one."""
